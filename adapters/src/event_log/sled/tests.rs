//! What is true of sled alone: how records are stored, and what damage does to its files.

mod damage;
mod folders;

use application::{
    contract::record,
    ports::{EventLog as _, Fault, ReadBound, StoredRecord},
};
use tempfile::TempDir;

use super::*;
use crate::event_log::embedded::RECORD_MAX;

mod any_embedded_engine {
    crate::event_log::embedded::tests::check_engine!(super::Sled);
}

#[tokio::test]
async fn a_record_of_the_largest_size_survives_a_restart_without_files_of_its_own() {
    let folder = TempDir::new().unwrap();
    let largest = Record { bytes: vec![b'x'; RECORD_MAX].into(), ..record(1) };
    let log = SledLog::open(folder.path()).unwrap();
    log.append(Position::START, &largest).await.unwrap();
    for position in 1..40 {
        let many_chunks = Record { bytes: vec![b'y'; 60_000].into(), ..record(position + 1) };
        log.append(Position(position), &many_chunks).await.unwrap();
    }
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

async fn append_up_to(log: &SledLog, commits: u64) {
    for position in log.head().await.unwrap().0..commits {
        log.append(Position(position), &record(position + 1)).await.unwrap();
    }
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
