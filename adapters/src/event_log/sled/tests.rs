//! Tests that are specific to sled: how records are stored, and the effects of damage to its files.

mod damage;
mod directories;

use application::{
    log::contract::{self, record},
    ports::{EventLog as _, Fault, LogSource as _, RECORD_MAX, ReadBound, Version},
};
use tempfile::TempDir;

use super::*;
use crate::event_log::embedded::tests::{append_up_to, store_with};

mod any_embedded_engine {
    crate::event_log::embedded::tests::check_engine!(super::Sled);
}

#[tokio::test]
async fn a_record_of_the_largest_size_survives_a_restart_and_gets_no_separate_file() {
    let directory = TempDir::new().unwrap();
    let largest = Record { bytes: vec![b'x'; RECORD_MAX].into(), ..record(1) };
    let log = SledLog::open(directory.path()).unwrap();
    let many_chunks =
        (2..=40).map(|position| Record { bytes: vec![b'y'; 60_000].into(), ..record(position) });
    contract::append_all(&log, [largest.clone()].into_iter().chain(many_chunks)).await;
    log.close().await;
    let log = SledLog::open(directory.path()).unwrap();
    let first = log.read(Position::START, ReadBound::ONE).await.unwrap();
    assert!(first[0].bytes == largest.bytes, "the record comes back as it was");
    let blobs = directory.path().join("sled").join("blobs").read_dir().unwrap().count();
    assert_eq!(blobs, 0, "sled never syncs files of large values, so there must be none");
}

/// A store with so many commits, closed again.
async fn store_of(path: &Path, commits: u64) {
    store_with::<Sled>(path, commits).await;
}
