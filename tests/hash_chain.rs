//! The hash chain: every record identifies the history before it.

use std::{
    fs,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
};

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel};
use application::{
    CreatePet, Digest, KeyId, LogAccess, Options, PetStore, RequestKey, codec,
    commit::Commit,
    contract,
    ports::{Clock, EventLog, Fault, LogError, LogSource as _, Position, ReadBound},
    transfer::{self, Broken, Summary},
};
use chrono::{DateTime, TimeDelta, Utc};
use domain::{CategoryId, NewPet, PetName};

/// A clock that shows what the test sets.
struct SetClock(Mutex<DateTime<Utc>>);

impl SetClock {
    fn at(hours: i64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(hour(hours))))
    }

    fn set(&self, hours: i64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = hour(hours);
    }
}

impl Clock for SetClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hour(hours: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::hours(hours)
}

async fn node(log: &Arc<MemoryLog>, clock: &Arc<SetClock>) -> PetStore {
    let read_model = Arc::<MemoryReadModel>::default();
    PetStore::open(log.clone(), read_model, clock.clone(), Options::new(LogAccess::Exclusive)).await.unwrap()
}

/// Adds a pet, and returns its id and whether it was there already.
async fn create(store: &PetStore, key: Option<&str>) -> (i64, bool) {
    let pet = NewPet { name: PetName::new("Rex").unwrap(), category_id: CategoryId(7), status: None };
    let request_key = key.map(|key| RequestKey::new(key).unwrap());
    let created = store.create(CreatePet { pet, by: KeyId("k".into()), request_key }).await.unwrap();
    (created.pet.id.get(), created.replayed)
}

/// A log with so many commits.
async fn history(commits: u64) -> Arc<MemoryLog> {
    let log = Arc::<MemoryLog>::default();
    let store = node(&log, &SetClock::at(0)).await;
    for _ in 0..commits {
        create(&store, None).await;
    }
    log
}

async fn walk(log: &dyn EventLog) -> Result<Summary, Broken<LogError>> {
    transfer::walk(log, async |_, _| Ok(())).await
}

async fn commits(log: &dyn EventLog) -> Vec<Commit> {
    let records = log.read(Position::START, ReadBound::BATCH).await.unwrap();
    records.iter().map(|record| codec::decode(&record.bytes).unwrap()).collect()
}

/// The same log with another name for the pet at `position`, and every checksum right.
async fn rewritten(log: &dyn EventLog, position: u64, chain: Chain) -> MemoryLog {
    let mut head = Digest::of(b"");
    let mut records = Vec::new();
    for mut commit in commits(log).await {
        if commit.position == Position(position) {
            let domain::PetEvent::Added(pet) = &mut commit.entries[0].event;
            pet.details.name = PetName::new("Max").unwrap();
        }
        if let Chain::Mended = chain {
            commit.previous = head;
        }
        let record = codec::encode(&commit);
        head = Digest::of(&record.bytes);
        records.push(record);
    }
    let other = MemoryLog::default();
    contract::append_all(&other, records).await;
    other
}

#[derive(Debug, Clone, Copy)]
enum Chain {
    Broken,
    Mended,
}

#[tokio::test]
async fn the_head_hash_is_the_hash_of_the_last_record() {
    let log = history(3).await;
    let last = log.read(Position(2), ReadBound::ONE).await.unwrap();
    assert_eq!(walk(&*log).await.unwrap().head_hash, Digest::of(&last[0].bytes));
}

#[tokio::test]
async fn an_old_record_that_was_rewritten_with_its_checksum_is_detected() {
    let log = history(5).await;
    let broken = walk(&rewritten(&*log, 2, Chain::Broken).await).await.unwrap_err();
    assert_eq!((broken.sound.last, broken.error.fault), (Position(2), Fault::Damaged), "{broken}");
}

#[tokio::test]
async fn a_completely_rewritten_history_has_a_different_head_hash() {
    let log = history(5).await;
    let kept = walk(&*log).await.unwrap().head_hash;
    let forged = rewritten(&*log, 2, Chain::Mended).await;
    assert!(walk(&forged).await.is_ok(), "it is sound in itself");
    let find = async |log: &dyn EventLog| transfer::find_head_hash(log, kept, |_| {}).await.unwrap().1;
    assert_eq!(find(&forged).await, None);
    let store = node(&log, &SetClock::at(1)).await;
    create(&store, None).await;
    assert_eq!(find(&*log).await, Some(Position(5)), "a log that has grown since is the same history");
}

#[tokio::test]
async fn a_write_after_72_idle_hours_or_on_a_backup_of_last_month_succeeds_at_once() {
    let log = Arc::<MemoryLog>::default();
    let clock = SetClock::at(0);
    let store = node(&log, &clock).await;
    create(&store, None).await;
    clock.set(72);
    assert_eq!(create(&store, None).await, (2, false));
    let restored = node(&log, &SetClock::at(24 * 31)).await;
    assert_eq!(create(&restored, None).await, (3, false));
    assert_eq!(commits(&*log).await.last().unwrap().time, hour(24 * 31), "the time is what the clock said");
}

#[tokio::test]
async fn a_clock_that_is_25_hours_ahead_makes_no_node_forget_a_key() {
    let log = Arc::<MemoryLog>::default();
    let right = node(&log, &SetClock::at(0)).await;
    assert_eq!(create(&right, Some("order-1")).await, (1, false));
    drop(right);
    let ahead = node(&log, &SetClock::at(25)).await;
    assert_eq!(create(&ahead, Some("order-1")).await, (1, true), "it has not forgotten");
    for id in 2..=30 {
        assert_eq!(create(&ahead, None).await, (id, false));
    }
    drop(ahead);
    let right = node(&log, &SetClock::at(1)).await;
    assert_eq!(create(&right, Some("order-1")).await, (1, true), "and the others have not");
    assert_eq!(right.clock_behind_log(), TimeDelta::hours(24), "and they can tell that a clock is wrong");
    assert_eq!(create(&right, None).await, (31, false));
    assert_eq!(commits(&*log).await.last().unwrap().time, hour(1), "its times are not forced on anybody");
}

#[tokio::test]
async fn the_script_in_the_docs_detects_what_verify_detects() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/storage-format.md")).unwrap();
    let script = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let sound = history(5).await;
    let (lines, head) = (exported(&*sound).await, walk(&*sound).await.unwrap().head_hash);
    assert_eq!(checked(script, &lines), format!("sound: {head}"));
    let forged = String::from_utf8(lines).unwrap().replacen("Rex", "Max", 1);
    assert_eq!(checked(script, forged.as_bytes()), "position 2 does not follow the records before it");
}

async fn exported(log: &dyn EventLog) -> Vec<u8> {
    let mut file = Vec::new();
    transfer::export(log, &mut file, DateTime::UNIX_EPOCH, |_| {}).await.unwrap();
    file
}

/// What the script says about an export.
fn checked(script: &str, export: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export");
    fs::write(&file, export).unwrap();
    let python = Command::new("python3").args(["-c", script]).arg(&file).output().unwrap();
    let said = if python.status.success() { python.stdout } else { python.stderr };
    String::from_utf8(said).unwrap().lines().next().unwrap_or_default().to_owned()
}
