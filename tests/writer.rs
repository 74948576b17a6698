//! What callers see when the log does not simply say yes: each test plays one way in which an append can go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreateError, CreatePet, Created, KeyId, Limit, ListPets, PetStore, RequestKey, Sharing, contract,
    ports::{
        AppendError, Durability, EventLog, Fault, LogError, Position, ReadBound, Record, StoredRecord,
        Version,
    },
};
use async_trait::async_trait;
use domain::{CategoryId, NewPet, PetName};

/// A memory log whose first append goes wrong in one way; afterwards it is sound.
struct FirstAppend {
    goes: Way,
    log: MemoryLog,
    appends: AtomicUsize,
    heads_refused: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Well,
    /// It was stored, but the answer is lost.
    LosesItsAnswer,
    /// It was not stored, and nobody can tell.
    GetsLost,
    /// It is stored only after the writer has looked for it.
    LandsLate,
    /// Another node stores a commit there first, and the answer to ours is lost.
    IsOvertakenUnseen,
    /// Another node stores a commit there first.
    IsOvertaken,
    /// The log refuses this one record.
    IsRefused,
    /// The log closes without having stored it, and opens again a little later.
    ClosesTheLog,
    /// The log closes having stored it, and opens again a little later.
    ClosesTheLogBehindIt,
    /// The log panics.
    Panics,
}

impl FirstAppend {
    fn goes(way: Way) -> Arc<Self> {
        Arc::new(Self {
            goes: way,
            log: MemoryLog::default(),
            appends: AtomicUsize::new(0),
            heads_refused: AtomicUsize::new(0),
        })
    }

    fn lost() -> LogError {
        LogError::new(Fault::Unreachable, "the connection broke")
    }
}

#[async_trait]
impl EventLog for FirstAppend {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let nth = self.appends.fetch_add(1, Ordering::SeqCst);
        if nth > 0 {
            if nth == 1 && self.goes == Way::LandsLate {
                return Err(AppendError::Conflict);
            }
            return self.log.append(expected, record).await;
        }
        match self.goes {
            Way::Well => self.log.append(expected, record).await,
            Way::LosesItsAnswer => {
                self.log.append(expected, record).await?;
                Err(AppendError::Unclear(Self::lost()))
            }
            Way::GetsLost => Err(AppendError::Unclear(Self::lost())),
            Way::LandsLate => {
                // Nobody sees it before the second try, which then conflicts with it.
                self.heads_refused.store(1, Ordering::SeqCst);
                self.log.append(expected, record).await?;
                Err(AppendError::Unclear(Self::lost()))
            }
            Way::IsOvertakenUnseen => {
                self.log.append(expected, &contract::record(expected.position.0 + 1)).await?;
                Err(AppendError::Unclear(Self::lost()))
            }
            Way::IsOvertaken => {
                self.log.append(expected, &contract::record(expected.position.0 + 1)).await?;
                self.log.append(expected, record).await
            }
            Way::IsRefused => Err(AppendError::NotStored(LogError::new(Fault::TooLarge, "too large"))),
            Way::ClosesTheLog => {
                self.heads_refused.store(2, Ordering::SeqCst);
                Err(AppendError::Closed(LogError::new(Fault::WriteFailed, "the disk said no")))
            }
            Way::ClosesTheLogBehindIt => {
                self.log.append(expected, record).await?;
                self.heads_refused.store(2, Ordering::SeqCst);
                Err(AppendError::Closed(LogError::new(Fault::WriteFailed, "the disk said no")))
            }
            Way::Panics => panic!("the log has a bug"),
        }
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        if self.goes == Way::LandsLate && self.appends.load(Ordering::SeqCst) == 1 {
            return Ok(vec![]);
        }
        self.log.read(after, bound).await
    }

    async fn head(&self) -> Result<Position, LogError> {
        let refused =
            self.heads_refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match refused {
            Ok(_) => Err(LogError::new(Fault::WriteFailed, "not opened again yet")),
            Err(_) => self.log.head().await,
        }
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        self.log.wait_beyond(position, patience).await
    }

    fn durability(&self) -> Durability {
        self.log.durability()
    }
}

async fn store_on(log: Arc<FirstAppend>) -> PetStore {
    let read_model = Arc::<MemoryReadModel>::default();
    PetStore::open(log, read_model, Arc::new(SystemClock), Sharing::Alone).await.unwrap()
}

fn rex() -> CreatePet {
    let pet = NewPet { name: PetName::new("Rex").unwrap(), category_id: CategoryId(7), status: None };
    CreatePet { pet, by: KeyId("somebody".into()), request_key: None }
}

async fn create(store: &PetStore) -> Result<i64, CreateError> {
    store.create(rex()).await.map(|Created { pet, .. }| pet.id.get())
}

/// The ids that readers see.
fn visible(store: &PetStore) -> Vec<i64> {
    let query = ListPets { limit: Limit::new(100).unwrap(), status: None, after: None };
    store.list(&query).unwrap().pets.iter().map(|pet| pet.id.get()).collect()
}

/// The positions and sizes the log really holds.
async fn stored(log: &FirstAppend) -> usize {
    log.log.read(Position::START, ReadBound::BATCH).await.unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn every_doubt_ends_with_exactly_one_pet() {
    for (way, id, commits) in [
        (Way::Well, 1, 1),
        (Way::LosesItsAnswer, 1, 1),
        (Way::GetsLost, 1, 1),
        (Way::LandsLate, 1, 1),
        (Way::IsOvertakenUnseen, 2, 2),
        (Way::IsOvertaken, 2, 2),
    ] {
        let log = FirstAppend::goes(way);
        let store = store_on(log.clone()).await;
        assert_eq!(create(&store).await, Ok(id), "{way:?}");
        assert_eq!(visible(&store), (1..=id).collect::<Vec<_>>(), "{way:?}");
        assert_eq!(stored(&log).await, commits, "{way:?}");
        assert_eq!(store.health().trouble(), None, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_record_is_told_and_the_next_one_is_served() {
    let log = FirstAppend::goes(Way::IsRefused);
    let store = store_on(log.clone()).await;
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::TooLarge)));
    assert_eq!(visible(&store), Vec::<i64>::new());
    assert_eq!(store.health().trouble(), None, "the log is still sound");
    assert_eq!(create(&store).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_closed_log_refuses_writes_keeps_reads_and_recovers_by_itself() {
    for (way, there_afterwards) in [(Way::ClosesTheLog, vec![1]), (Way::ClosesTheLogBehindIt, vec![1, 2])] {
        let log = FirstAppend::goes(way);
        let store = store_on(log.clone()).await;
        assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::WriteFailed)), "{way:?}");
        assert_eq!(visible(&store), Vec::<i64>::new(), "{way:?}: nothing that was refused is shown");
        assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::WriteFailed)), "{way:?}");
        assert_eq!(store.health().trouble().map(|error| error.fault), Some(Fault::WriteFailed), "{way:?}");
        while store.health().trouble().is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(create(&store).await.is_ok(), "{way:?}");
        assert_eq!(visible(&store), there_afterwards, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_panics_says_so_and_reads_go_on() {
    let store = store_on(FirstAppend::goes(Way::Panics)).await;
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::Stopped)));
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::Stopped)));
    assert_eq!(visible(&store), Vec::<i64>::new());
    assert_eq!(store.health().trouble().map(|error| error.fault), Some(Fault::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_key_makes_one_pet_however_often_it_is_sent() {
    let store = store_on(FirstAppend::goes(Way::LosesItsAnswer)).await;
    let request = CreatePet { request_key: Some(RequestKey::new("order-1").unwrap()), ..rex() };
    let sends = (0..50).map(|_| store.create(request.clone()));
    let mut answers = Vec::new();
    for send in sends {
        answers.push(send.await.unwrap());
    }
    assert!(answers.iter().all(|created| created.pet.id.get() == 1));
    assert_eq!(answers.iter().filter(|created| !created.replayed).count(), 1);
    let mut other = request;
    other.pet.name = PetName::new("Bella").unwrap();
    assert_eq!(store.create(other).await, Err(CreateError::RequestKeyReused));
}

#[tokio::test]
async fn creates_that_wait_together_share_a_commit() {
    // One more than the most events in a commit begins another one.
    for (creates, commits) in [(1, 1), (2, 1), (1_024, 1), (1_025, 2)] {
        let log = FirstAppend::goes(Way::Well);
        let store = store_on(log.clone()).await;
        // One thread: nothing is taken off the queue until this test waits.
        let outcomes = join_all((0..creates).map(|_| Box::pin(create(&store))).collect()).await;
        assert_eq!(outcomes, (1..=creates).map(Ok).collect::<Vec<_>>());
        assert_eq!(stored(&log).await, commits, "{creates} creates");
    }
}

#[tokio::test]
async fn a_full_queue_is_busy_and_loses_nobody_who_was_taken() {
    let store = store_on(FirstAppend::goes(Way::Well)).await;
    // One thread: nothing is taken off the queue until this test waits.
    let creates = (0..PetStore::QUEUE_MAX + 10).map(|_| Box::pin(create(&store))).collect();
    let outcomes = join_all(creates).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(CreateError::Busy)).count(), 10);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), PetStore::QUEUE_MAX);
}

/// Polls each future once before any of them is waited for.
async fn join_all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut started: Vec<_> = Vec::new();
    for mut future in futures {
        let first = std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut future).poll(context))
        })
        .await;
        started.push((future, first));
    }
    let mut outputs = Vec::new();
    for (future, first) in started {
        outputs.push(match first {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => future.await,
        });
    }
    outputs
}

#[tokio::test]
async fn closing_answers_everybody_who_was_taken() {
    let log = FirstAppend::goes(Way::Well);
    let store = store_on(log.clone()).await;
    let (first, second) = (create(&store), create(&store));
    assert_eq!(tokio::join!(first, second), (Ok(1), Ok(2)));
    store.close().await;
    assert_eq!(Arc::strong_count(&log), 1, "a closed store has let go of its log");
}
