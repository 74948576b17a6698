//! Snapshots that are taken while commits are applied, and of logs of every kind, compared with a replay.

use std::{
    io::{self, Cursor},
    sync::{Arc, Mutex},
    time::Duration,
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreatePet, KeyId, LogAccess, Options, PetStore, RequestKey, Snapshots, codec,
    commit::{Commit, Format},
    contract,
    ports::{LogSource, Position, ReadBound, ReadModel, SnapshotStore, WriteSnapshot},
    snapshot::{self, Comparison},
};
use domain::{CategoryId, NewPet, Pet, PetEvent, PetId, PetName};
use harness::all_pets;

/// Keeps a snapshot in memory, and every one that was ever written.
#[derive(Default)]
struct Shelf(Mutex<Vec<Vec<u8>>>);

impl SnapshotStore for Shelf {
    fn open(&self) -> io::Result<Option<Box<dyn io::Read + Send>>> {
        let last = self.0.lock().unwrap().last().cloned();
        Ok(last.map(|bytes| Box::new(Cursor::new(bytes)) as Box<dyn io::Read + Send>))
    }

    fn replace(&self, write: &mut WriteSnapshot<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        write(&mut bytes)?;
        self.0.lock().unwrap().push(bytes);
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        self.0.lock().unwrap().clear();
        Ok(())
    }

    fn place(&self) -> String {
        "in memory".into()
    }
}

fn model() -> Arc<dyn ReadModel> {
    Arc::<MemoryReadModel>::default()
}

async fn open(log: &Arc<MemoryLog>, shelf: &Arc<Shelf>, every: u64) -> PetStore {
    let (clock, options) = (Arc::new(SystemClock), Options::new(LogAccess::Exclusive));
    let snapshots = Some(Snapshots::new(shelf.clone(), every));
    PetStore::open_with(log.clone(), model(), clock, options, snapshots).await.unwrap()
}

async fn compare(log: &MemoryLog, shelf: &Arc<Shelf>) -> Comparison {
    snapshot::compare(log, shelf.clone(), [model(), model()]).await.unwrap()
}

async fn add(store: &PetStore, owner: &str, number: u32) {
    let name = PetName::new(format!("pet {number}")).unwrap();
    let pet = NewPet { name, category_id: CategoryId(i64::from(number)), status: None };
    let request_key = (!number.is_multiple_of(3)).then(|| RequestKey::new(format!("{number}")).unwrap());
    store.create(CreatePet { pet, by: KeyId(owner.into()), request_key }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_snapshot_that_is_taken_under_load_is_what_a_replay_up_to_there_gives() {
    let (log, shelf) = (Arc::<MemoryLog>::default(), Arc::<Shelf>::default());
    let store = Arc::new(open(&log, &shelf, 1).await);
    let writers: Vec<_> = ["a", "b", "c", "d"]
        .map(|owner| {
            let (store, shelf) = (store.clone(), shelf.clone());
            tokio::spawn(async move {
                let mut number = 0;
                while number < 100 || shelf.0.lock().unwrap().len() < 5 {
                    add(&store, owner, number).await;
                    number += 1;
                }
            })
        })
        .into_iter()
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    Arc::try_unwrap(store).ok().unwrap().close().await;
    let taken = shelf.0.lock().unwrap().clone();
    let head = log.head().await.unwrap();
    assert_eq!(compare(&log, &shelf).await, Comparison::Same(head), "the last one is of the end");
    for bytes in taken {
        let one = Arc::new(Shelf(Mutex::new(vec![bytes])));
        assert!(matches!(compare(&log, &one).await, Comparison::Same(_)));
    }
}

/// The same pets in a log of version 1.
async fn version_1(log: &MemoryLog) -> Vec<Commit> {
    let records = log.read(Position::START, ReadBound::BATCH).await.unwrap();
    let commit = |bytes: &[u8]| Commit { format: Format::V1, ..codec::decode(bytes).unwrap() };
    records.iter().map(|record| commit(&record.bytes)).collect()
}

async fn log_of(commits: &[Commit]) -> Arc<MemoryLog> {
    let log = Arc::<MemoryLog>::default();
    contract::append_all(&*log, commits.iter().map(codec::encode)).await;
    log
}

/// A log of version 1 with so many commits.
async fn old_log(commits: u32) -> Vec<Commit> {
    let log = Arc::<MemoryLog>::default();
    let store = open(&log, &Arc::default(), 1_000).await;
    for number in 0..commits {
        add(&store, "k", number).await;
    }
    version_1(&log).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_version_1_goes_on_from_a_snapshot() {
    let (log, shelf) = (log_of(&old_log(7).await).await, Arc::<Shelf>::default());
    let store = open(&log, &shelf, 1).await;
    add(&store, "k", 100).await;
    store.close().await;
    assert_eq!(compare(&log, &shelf).await, Comparison::Same(Position(8)));
    for number in 101..104 {
        let store = open(&log, &shelf, 1).await;
        add(&store, "k", number).await;
        store.close().await;
    }
    assert_eq!(compare(&log, &shelf).await, Comparison::Same(Position(11)));
    let replayed = harness::open_node(log, LogAccess::Exclusive).await;
    assert_eq!(all_pets(&replayed).unwrap().len(), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_rewritten_under_a_snapshot_is_noticed_and_replayed() {
    // In version 1 nothing but the digest over all records tells: the first and the last one are the same.
    let mut commits = old_log(9).await;
    let (log, shelf) = (log_of(&commits).await, Arc::<Shelf>::default());
    let store = open(&log, &shelf, 1).await;
    assert_eq!(store.checked(), Position(9));
    tokio::time::timeout(Duration::from_mins(1), async {
        while store.snapshot().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    store.close().await;
    let name = PetName::new("rewritten").unwrap();
    let details = NewPet { name, category_id: CategoryId(7), status: None };
    commits[4].entries[0].event = PetEvent::Added(Pet { id: PetId::new(5).unwrap(), details });
    let rewritten = log_of(&commits).await;
    let store = open(&rewritten, &shelf, 1).await;
    let expected = all_pets(&harness::open_node(rewritten.clone(), LogAccess::Exclusive).await).unwrap();
    tokio::time::timeout(Duration::from_mins(1), async {
        while all_pets(&store) != Ok(expected.clone()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("what the log says is shown in the end");
    add(&store, "k", 200).await;
}
