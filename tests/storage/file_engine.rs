//! The worked example of `docs/storage-adapters.md`, an embedded engine in one plain file, meets the contract.

mod engine;

use std::{fs, path::Path, sync::Arc};

use adapters::event_log::embedded::{EmbeddedLog, ReadOnlyLog};
use application::{
    log::contract,
    ports::{EventLog, Fault, LogSource as _, Position, Version},
};
use harness::close_embedded;

use engine::FileEngine;

type FileLog = EmbeddedLog<FileEngine>;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_meets_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    contract::check_all(async || {
        let path = tempfile::tempdir_in(&directory).unwrap().keep().join("log");
        Arc::new(EmbeddedLog::<FileEngine>::open(path).unwrap()) as Arc<dyn EventLog>
    })
    .await;
}

/// Creates a log with so many commits, and closes it.
async fn fill(path: &Path, commits: u64) {
    let log = FileLog::open(path).unwrap();
    contract::fill(&log, Version::START, commits).await;
    close_embedded(&log, path).await;
}

#[tokio::test]
async fn the_example_drops_a_frame_that_was_never_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fill(&path, 2).await;
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], &whole[..30]].concat()).unwrap();
    let log = FileLog::open(&path).unwrap();
    assert_eq!(log.head().await, Ok(Position(2)));
    assert!(fs::read(&path).unwrap() == whole, "the torn frame is gone");
}

#[tokio::test]
async fn the_example_rejects_a_log_that_has_lost_its_end_and_salvages_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fill(&path, 3).await;
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let rejected = FileLog::open(&path).unwrap_err();
    assert_eq!(rejected.fault, Fault::Damaged);
    assert!(rejected.detail.contains("ends at position 2, but commits up to 3"), "{rejected}");
    assert_eq!(fs::read(&path).unwrap().len(), whole.len() - 1, "a rejected log stays as it is");

    let salvaged = ReadOnlyLog::salvage::<FileEngine>(&path).unwrap();
    assert_eq!(salvaged.last_known, Position(3));
    let read = salvaged.log.read(Position::START, application::ports::ReadBound::BATCH).await.unwrap();
    assert_eq!(read.len(), 2);
}
