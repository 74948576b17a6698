//! The largest message that a server accepts.

use std::fs;

use adapters::event_log::{nats::NatsLog, sled::SledLog};
use application::{
    Digest,
    log::{codec, commit::Entry, contract},
    ports::{AppendError, EventLog as _, Fault, LogSource as _, Position, RECORD_MAX, Record, Version},
};
use domain::{Pet, PetEvent, PetId, PetName};
use harness::{NatsCluster, NatsSync, close_embedded, petstore};

use super::open_log;

/// More than the headers of a commit have, which are a part of its message.
const HEADERS_MAX: usize = 128;
/// How many pets fill about two thirds of a record, if their names are short.
const PETS: usize = 4_500;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_only_small_messages_is_rejected() {
    let cluster = NatsCluster::start_with(1, NatsSync::Default, "max_payload: 1048575").await;
    let error = NatsLog::open(&cluster.url("PETS"), None).await.err().expect("a record may not fit");
    assert_eq!(error.fault, Fault::CannotOpen, "{error}");
    assert_eq!(
        error.detail,
        "nats-server accepts messages of only 1048575 bytes: set its max_payload to 1048576 or more"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_too_large_for_the_server_is_rejected_and_the_log_keeps_working() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let log = open_log(&cluster.url("PETS")).await;
    let sized = |bytes| Record { bytes: vec![b'x'; bytes].into(), ..contract::record(1) };
    match log.append(Version::START, &[sized(RECORD_MAX)]).await {
        Err(AppendError::NotStored(error)) => assert_eq!(error.fault, Fault::TooLarge, "{error}"),
        other => panic!("too large is certainly not stored: {other:?}"),
    }
    assert_eq!(log.append(Version::START, &[sized(RECORD_MAX - HEADERS_MAX)]).await, Ok(Position(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_copied_up_to_a_record_that_the_server_does_not_accept() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = SledLog::open(&path).unwrap();
    let head = contract::fill(&log, Version::START, 3).await;
    let previous = contract::head_hash(&log, head.position).await;
    log.append(head, &[largest_record(previous, 4)]).await.unwrap();
    close_embedded(&log, &path).await;
    let (from, to) = (format!("sled:{}", path.display()), cluster.url("COPY"));
    let file = directory.path().join("export.jsonl");
    fs::write(&file, petstore(["log", "export", "--store", &from]).stdout).unwrap();

    for arguments in [
        vec!["log", "copy", "--from", &from, "--to", &to],
        vec!["log", "import", file.to_str().unwrap(), "--store", &to],
    ] {
        petstore(&arguments)
            .exits_with(1)
            .says("the NATS server does not accept the record")
            .says("choose another engine, or raise");
        assert_eq!(open_log(&to).await.head().await, Ok(Position(3)), "{arguments:?}");
    }
}

/// A commit of many pets whose record has the maximum size.
fn largest_record(previous: Digest, position: u64) -> Record {
    let mut commit = codec::decode(&contract::record_after(previous, position).bytes).unwrap();
    let entry = commit.entries[0].clone();
    let pet = entry.event.added().unwrap().clone();
    let with_name = |pets: &mut [Entry], names: &mut dyn FnMut() -> String| {
        for (entry, id) in pets.iter_mut().zip(pet.id.get()..) {
            let mut pet = Pet { id: PetId::new(id).unwrap(), ..pet.clone() };
            pet.details.name = PetName::new(names()).unwrap();
            entry.event = PetEvent::Added(pet);
        }
    };
    commit.entries = vec![entry; PETS];
    with_name(&mut commit.entries, &mut || "x".into());
    let mut missing = RECORD_MAX - codec::encode(&commit).bytes.len();
    with_name(&mut commit.entries, &mut || {
        let more = missing.min(PetName::MAX_CHARS - 1);
        missing -= more;
        "x".repeat(1 + more)
    });
    let record = codec::encode(&commit);
    assert_eq!(record.bytes.len(), RECORD_MAX);
    record
}
