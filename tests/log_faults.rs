//! What a node does when its log gets into trouble, one kind of trouble per test. What happens when kinds come together
//! is the simulation's business.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreateError, CreatePet, KeyId, Limit, ListPets, PetStore, Sharing, contract,
    ports::{
        AppendError, Durability, EventLog, Fault, LogError, Position, ReadBound, Record, StoredRecord,
        Version,
    },
};
use async_trait::async_trait;
use domain::{CategoryId, NewPet, PetName};
use tokio::time::{self, Instant};

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
    /// Nothing gets through, and that is certain.
    Disconnected,
    /// Appends get lost; everything else works.
    LosesAppends,
    /// An append takes a minute.
    Slow,
    /// The next append takes a second, and meanwhile another node stores a commit.
    OvertakenOnce,
    /// Another node writes in a newer format, and the answer to ours is lost.
    WrittenByANewerProgram,
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

    /// Puts a log with so many commits in the place of this one, and nobody notices.
    async fn is_restored_with(&self, commits: u64) {
        let other = MemoryLog::default();
        contract::fill(&other, Version::START, commits).await;
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(other);
    }

    fn reach(&self) -> Result<Arc<MemoryLog>, LogError> {
        match self.trouble() {
            Trouble::Away | Trouble::Disconnected => Err(LogError::new(Fault::Unreachable, "away")),
            Trouble::None
            | Trouble::LosesAppends
            | Trouble::Slow
            | Trouble::OvertakenOnce
            | Trouble::WrittenByANewerProgram
            | Trouble::AppendsPanic
            | Trouble::WaitsPanic => Ok(self.log()),
        }
    }
}

#[async_trait]
impl EventLog for Troubled {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let lost = LogError::new(Fault::Unreachable, "lost");
        match self.trouble() {
            Trouble::None | Trouble::WaitsPanic => self.log().append(expected, record).await,
            Trouble::Away | Trouble::LosesAppends => Err(AppendError::Unclear(lost)),
            Trouble::Disconnected => Err(AppendError::NotStored(lost)),
            Trouble::Slow => {
                time::sleep(Duration::from_mins(1)).await;
                self.log().append(expected, record).await
            }
            Trouble::OvertakenOnce => {
                time::sleep(Duration::from_secs(1)).await;
                self.gets_into(Trouble::None);
                self.log().append(expected, &contract::record(expected.position.0 + 1)).await?;
                Err(AppendError::Conflict)
            }
            Trouble::WrittenByANewerProgram => {
                self.log().append(expected, &newer(record)).await?;
                Err(AppendError::Unclear(lost))
            }
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

/// The same record as a program of the future would write it.
fn newer(record: &Record) -> Record {
    let text = String::from_utf8(record.bytes.to_vec()).unwrap().replace("{\"v\":1,", "{\"v\":2,");
    let body = &text[..text.rfind(",\"crc32c\"").unwrap()];
    let bytes = format!("{body},\"crc32c\":\"{:08x}\"}}", crc32c::crc32c(body.as_bytes()));
    Record { id: record.id, bytes: bytes.into() }
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

/// The names that readers see.
fn visible(store: &PetStore) -> Vec<String> {
    let query = ListPets { limit: Limit::new(100).unwrap(), status: None, after: None };
    store.list(&query).unwrap().pets.iter().map(|pet| pet.details.name.as_str().into()).collect()
}

fn fault(store: &PetStore) -> Option<Fault> {
    store.health().trouble().map(|error| error.fault)
}

/// Lets simulated time pass, more than enough for everything that is under way.
async fn after_a_while() {
    time::sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_away_for_a_moment_costs_nobody_a_request() {
    for trouble in [Trouble::Away, Trouble::Disconnected] {
        let log = Arc::<Troubled>::default();
        let store = shared(&log).await;
        log.gets_into(trouble);
        let back_soon = async {
            time::sleep(Duration::from_secs(3)).await;
            log.gets_into(Trouble::None);
        };
        let (first, second, ()) = tokio::join!(create(&store), create(&store), back_soon);
        assert_eq!((first, second), (Ok(1), Ok(2)), "{trouble:?}");
        after_a_while().await;
        assert_eq!(fault(&store), None, "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_engine_stays_away_everybody_is_told_at_once() {
    for trouble in [Trouble::Away, Trouble::Disconnected] {
        let log = Arc::<Troubled>::default();
        let store = shared(&log).await;
        log.gets_into(trouble);
        let unreachable = Err(CreateError::Unavailable(Fault::Unreachable));
        assert_eq!(create(&store).await, unreachable, "{trouble:?}");
        after_a_while().await;
        assert_eq!(fault(&store), Some(Fault::Unreachable), "{trouble:?}");
        let asked = Instant::now();
        assert_eq!(create(&store).await, unreachable, "{trouble:?}");
        assert_eq!(asked.elapsed(), Duration::ZERO, "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_long_after_its_callers_were_told_that_it_failed() {
    let log = Arc::<Troubled>::default();
    let store = shared(&log).await;
    log.gets_into(Trouble::LosesAppends);
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::Unreachable)));
    after_a_while().await;
    log.gets_into(Trouble::None);
    after_a_while().await;
    assert_eq!(log.head().await, Ok(Position(0)));
    assert_eq!(create(&store).await, Ok(1), "and the writer is not stuck");
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_an_engine_that_is_away() {
    for (trouble, sharing) in [(Trouble::Away, Sharing::Shared), (Trouble::LosesAppends, Sharing::Alone)] {
        let log = Arc::<Troubled>::default();
        let store = open(&log, sharing).await;
        log.gets_into(trouble);
        let given_up = time::timeout(Duration::from_millis(100), create(&store)).await;
        assert!(given_up.is_err(), "{trouble:?}: the request is in doubt");
        let closed = time::timeout(Duration::from_secs(10), store.close()).await;
        assert_eq!(closed, Ok(()), "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_that_hangs_is_reported_and_waited_for() {
    let log = Arc::<Troubled>::default();
    let store = open(&log, Sharing::Alone).await;
    log.gets_into(Trouble::Slow);
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::Unreachable)));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fault(&store), Some(Fault::Unreachable));
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!(fault(&store), None);
    assert_eq!(visible(&store), ["Rex"], "what was stored in the end is shown");
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_commit_is_overtaken_shares_the_next_try() {
    let log = Arc::<Troubled>::default();
    let store = open(&log, Sharing::Alone).await;
    log.gets_into(Trouble::OvertakenOnce);
    let later = async {
        time::sleep(Duration::from_millis(500)).await;
        create(&store).await
    };
    assert_eq!(tokio::join!(create(&store), later), (Ok(2), Ok(3)));
    assert_eq!(log.head().await, Ok(Position(2)), "the other node's commit and one more");
}

#[tokio::test(start_paused = true)]
async fn a_doubt_ends_when_a_newer_program_has_written_there() {
    let log = Arc::<Troubled>::default();
    let store = open(&log, Sharing::Alone).await;
    log.gets_into(Trouble::WrittenByANewerProgram);
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::NewerFormat)));
    assert_eq!(fault(&store), Some(Fault::NewerFormat));
    let query = ListPets { limit: Limit::DEFAULT, status: None, after: None };
    assert_eq!(store.list(&query), Err(Fault::NewerFormat), "what it would show is no longer the truth");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_follows_a_newer_program_stops_serving_and_says_so() {
    let log = Arc::<Troubled>::default();
    let store = shared(&log).await;
    assert_eq!(create(&store).await, Ok(1));
    log.append(contract::version(&*log).await, &newer(&contract::record(2))).await.unwrap();
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::NewerFormat));
    let query = ListPets { limit: Limit::DEFAULT, status: None, after: None };
    assert_eq!(store.list(&query), Err(Fault::NewerFormat), "what it would show is no longer the truth");
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::NewerFormat)));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_restored_unseen_is_replayed_and_written_to() {
    for commits in [0, 1, 2, 3, 4, 7] {
        let log = Arc::<Troubled>::default();
        let store = shared(&log).await;
        for id in 1..=3 {
            assert_eq!(create(&store).await, Ok(id));
        }
        log.is_restored_with(commits).await;
        after_a_while().await;
        let last = log.head().await.unwrap().0;
        let expected: Vec<_> = (1..=last).map(|number| format!("pet {number}")).collect();
        assert_eq!(visible(&store), expected, "restored with {commits}");
        assert_eq!(create(&store).await, Ok(i64::try_from(last).unwrap() + 1), "restored with {commits}");
        assert_eq!(fault(&store), None, "restored with {commits}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_finds_out_by_itself_that_its_log_has_become_shorter() {
    let log = Arc::<Troubled>::default();
    // Nobody follows.
    let store = open(&log, Sharing::Alone).await;
    for id in 1..=3 {
        assert_eq!(create(&store).await, Ok(id));
    }
    log.is_restored_with(1).await;
    assert_eq!(create(&store).await, Err(CreateError::Unavailable(Fault::Diverged)));
    after_a_while().await;
    assert_eq!(create(&store).await, Ok(2));
    assert_eq!(visible(&store), ["pet 1", "Rex"]);
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
