//! A log so long that all cores decode it: everything is applied, in order, and the first fault is the one that is reported.

mod startup;

use std::sync::Arc;

use adapters::{event_log::memory::MemoryLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    Digest, LogAccess, Options, OwnerId, PetStore,
    log::{
        codec,
        commit::{Commit, Entry},
        contract,
    },
    ports::{LogError, Position, Record},
};
use domain::{
    Pet, PetEvent,
    test_values::{self, varied},
};
use harness::{all_pets, history};

/// Several reads of the log, each of many parts.
const COMMITS: u64 = 6_000;
const PETS: i64 = 8;

/// Every tenth name is one that only serde reads.
fn pet(id: i64) -> Pet {
    let name = match id % 10 {
        0 => format!("\"{id}\" \\ Zoë"),
        1 => format!("🐈 {id}"),
        _ => format!("Rex {id} {}", "x".repeat(80)),
    };
    test_values::pet(id, varied(name, id.cast_unsigned()))
}

/// A log whose records were changed by `change` after they were written.
async fn log(change: impl Fn(u64, &mut Vec<u8>)) -> Arc<MemoryLog> {
    let entry = |id| Entry { event: PetEvent::Added(pet(id)), by: OwnerId("k".into()), request_key: None };
    let records = (1..).zip(history(COMMITS, PETS, entry)).map(|(position, record)| {
        let mut bytes = record.bytes.to_vec();
        change(position, &mut bytes);
        Record { id: record.id, bytes: bytes.into() }
    });
    let log = Arc::<MemoryLog>::default();
    contract::append_all(&*log, records).await;
    log
}

async fn open(log: Arc<MemoryLog>) -> Result<PetStore, LogError> {
    let read_model = Box::<MemoryReadModel>::default();
    PetStore::open(log, read_model, Arc::new(SystemClock), Options::new(LogAccess::Exclusive)).await
}

#[tokio::test]
async fn a_long_log_is_replayed_completely_and_in_order() {
    let store = open(log(|_, _| {}).await).await.unwrap();
    let expected: Vec<_> = (1..=COMMITS.cast_signed() * PETS).map(pet).collect();
    assert!(all_pets(&store).unwrap() == expected, "all pets are there, in order");
    assert_eq!(store.version().position, Position(COMMITS));
}

#[tokio::test]
async fn the_first_of_several_damaged_records_is_the_one_that_is_reported() {
    let damaged = |bytes: &mut Vec<u8>| bytes[100] ^= 1;
    let log = log(|position, bytes| {
        if [3_217, 3_218, 5_000].contains(&position) {
            damaged(bytes);
        }
    })
    .await;
    let rejected = open(log).await.err().expect("a damaged log is rejected");
    assert!(rejected.detail.contains("position 3217 "), "{rejected}");
}

#[tokio::test]
async fn a_record_that_was_replaced_by_a_sound_one_breaks_the_chain() {
    let log = log(|position, bytes| {
        if position == 2_345 {
            let commit = codec::decode(bytes).unwrap();
            *bytes = codec::encode(&Commit { previous: Digest::of(b"other"), ..commit }).bytes.to_vec();
        }
    });
    let rejected = open(log.await).await.err().expect("a broken chain is rejected");
    assert!(rejected.detail.contains("position 2345 does not match the hash"), "{rejected}");
}
