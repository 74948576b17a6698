//! The embedded log against its contract and against what the world does to it.

mod damage;
mod faults;
mod folders;

use std::{path::Path, sync::Arc};

use application::{
    contract::{self, record},
    ports::EventLog,
};
use tempfile::TempDir;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_log_keeps_the_contract() {
    let folder = TempDir::new().unwrap();
    let fresh = async || {
        let path = tempfile::tempdir_in(&folder).unwrap().keep();
        Arc::new(SledLog::open(path).unwrap()) as Arc<dyn EventLog>
    };
    contract::check_all(fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reopened_log_holds_everything() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a").join("b");
    let open = async || Arc::new(SledLog::open(&path).unwrap()) as Arc<dyn EventLog>;
    contract::a_reopened_log_holds_everything(open).await;
}

#[tokio::test]
async fn a_record_over_the_limit_is_refused_and_the_log_goes_on() {
    let folder = TempDir::new().unwrap();
    let log = SledLog::open(folder.path()).unwrap();
    let huge = Record { bytes: vec![b'x'; RECORD_MAX + 1].into(), ..record(1) };
    let refused = log.append(Version::START, &huge).await;
    assert!(
        matches!(&refused, Err(AppendError::NotStored(error)) if error.fault == Fault::TooLarge),
        "{refused:?}"
    );
    assert_eq!(log.append(Version::START, &record(1)).await, Ok(Position(1)));
}

#[tokio::test]
async fn a_record_of_the_largest_size_survives_a_restart_without_files_of_its_own() {
    let folder = TempDir::new().unwrap();
    let largest = Record { bytes: vec![b'x'; RECORD_MAX].into(), ..record(1) };
    let log = SledLog::open(folder.path()).unwrap();
    let many_chunks =
        (2..=40).map(|position| Record { bytes: vec![b'y'; 60_000].into(), ..record(position) });
    contract::append_all(&log, [largest.clone()].into_iter().chain(many_chunks)).await;
    drop(log);
    let log = SledLog::open(folder.path()).unwrap();
    let first = log.read(Position::START, ReadBound::ONE).await.unwrap();
    assert!(first[0].bytes == largest.bytes, "the record comes back as it was");
    let blobs = folder.path().join("sled").join("blobs").read_dir().unwrap().count();
    assert_eq!(blobs, 0, "sled never syncs files of large values, so there must be none");
}

/// A store with so many commits, closed again.
async fn store_of(path: &Path, commits: u64) {
    let log = SledLog::open(path).unwrap();
    append_up_to(&log, commits).await;
}

async fn append_up_to(log: &SledLog, commits: u64) -> Version {
    let head = contract::version(log).await;
    contract::fill(log, head, commits - head.position.0).await
}

/// Everything in the log, or the first error.
async fn read_all(log: &SledLog) -> Result<Vec<StoredRecord>, LogError> {
    let mut all: Vec<StoredRecord> = Vec::new();
    loop {
        let last = all.last().map_or(Position::START, |record| record.position);
        let more = log.read(last, ReadBound { records: 50, bytes: 100_000 }).await?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}
