//! Snapshots that are taken while commits are applied, and of logs of every kind, compared with a replay.

use std::{
    io::{self, Cursor},
    sync::{Arc, Mutex},
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreatePet, KeyId, LogAccess, Options, PetStore, RequestKey, Snapshots,
    ports::{LogSource, ReadModel, SnapshotStore, WriteSnapshot},
    snapshot::{self, Comparison},
};
use domain::{CategoryId, NewPet, PetName};

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
