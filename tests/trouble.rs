//! What a node does when its log gets into trouble, one kind of trouble per test. What happens when kinds come together
//! is the simulation's business.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreateError, CreatePet, KeyId, PetStore, Sharing,
    ports::{AppendError, Durability, EventLog, Fault, LogError, Position, ReadBound, Record, StoredRecord},
};
use async_trait::async_trait;
use domain::{CategoryId, NewPet, PetName};
use tokio::time;

/// A memory log that gets into trouble when it is told to, and out of it again.
#[derive(Default)]
struct Troubled {
    log: Mutex<Arc<MemoryLog>>,
    trouble: Mutex<Trouble>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Trouble {
    #[default]
    None,
    /// Nothing gets through, and nobody can tell what became of an append.
    Away,
    AppendsPanic,
    WaitsPanic,
}

impl Troubled {
    fn log(&self) -> Arc<MemoryLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn trouble(&self) -> Trouble {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gets_into(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn reach(&self) -> Result<Arc<MemoryLog>, LogError> {
        match self.trouble() {
            Trouble::Away => Err(LogError::new(Fault::Unreachable, "away")),
            Trouble::None | Trouble::AppendsPanic | Trouble::WaitsPanic => Ok(self.log()),
        }
    }
}

#[async_trait]
impl EventLog for Troubled {
    async fn append(&self, expected: Position, record: &Record) -> Result<Position, AppendError> {
        let lost = LogError::new(Fault::Unreachable, "lost");
        match self.trouble() {
            Trouble::None | Trouble::WaitsPanic => self.log().append(expected, record).await,
            Trouble::Away => Err(AppendError::Unclear(lost)),
            Trouble::AppendsPanic => panic!("the log has a bug"),
        }
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        self.reach()?.read(after, bound).await
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.reach()?.head().await
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        assert_ne!(self.trouble(), Trouble::WaitsPanic, "the log has a bug");
        self.reach()?.wait_beyond(position, patience).await
    }

    fn durability(&self) -> Durability {
        self.log().durability()
    }
}

async fn shared(log: &Arc<Troubled>) -> PetStore {
    open(log, Sharing::Shared).await
}

async fn open(log: &Arc<Troubled>, sharing: Sharing) -> PetStore {
    let read_model = Arc::<MemoryReadModel>::default();
    PetStore::open(log.clone(), read_model, Arc::new(SystemClock), sharing).await.unwrap()
}

async fn create(store: &PetStore) -> Result<i64, CreateError> {
    let pet = NewPet { name: PetName::new("Rex").unwrap(), category_id: CategoryId(7), status: None };
    let request = CreatePet { pet, by: KeyId("somebody".into()), request_key: None };
    store.create(request).await.map(|created| created.pet.id.get())
}

fn fault(store: &PetStore) -> Option<Fault> {
    store.health().trouble().map(|error| error.fault)
}

/// Lets simulated time pass, more than enough for everything that is under way.
async fn after_a_while() {
    time::sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_has_stopped_is_not_forgotten_when_the_log_comes_back() {
    let log = Arc::<Troubled>::default();
    let store = shared(&log).await;
    log.gets_into(Trouble::AppendsPanic);
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::Stopped)));
    log.gets_into(Trouble::Away);
    after_a_while().await;
    log.gets_into(Trouble::None);
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_panics_says_so() {
    let log = Arc::<Troubled>::default();
    let store = shared(&log).await;
    log.gets_into(Trouble::WaitsPanic);
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Stopped));
    assert_eq!(create(&store).await, Ok(1), "writes go on");
    assert_eq!(fault(&store), Some(Fault::Stopped));
}
