//! Histories of a chosen size, written without a service.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

use adapters::event_log::{sled::SledLog, sqlite::SqliteLog};
use application::{
    Digest, OwnerId, Version,
    log::{
        codec,
        commit::{Commit, Entry, NodeId},
    },
    ports::{CommitId, EventLog, Position, ReadBound, Record},
};
use chrono::DateTime;
use domain::test_values::{self, named};
use uuid::Uuid;

use crate::{files_below, wait_until};

/// Opens the log of an embedded engine, without a service.
pub fn open_embedded(engine: &str, path: &Path) -> Arc<dyn EventLog> {
    match engine {
        "sled" => Arc::new(SledLog::open(path).expect("a sound log")),
        "sqlite" => Arc::new(SqliteLog::open(path).expect("a sound log")),
        other => panic!("{other} is not an embedded engine"),
    }
}

/// Closes a log that was opened without a service, and waits until another process can open it.
pub async fn close_embedded(log: &dyn EventLog, path: &Path) {
    log.close().await;
    wait_until_unlocked(path);
}

/// Waits until no file next to this one, or below it, is locked. A process that another test starts has the locks of this
/// one until it runs its program.
pub fn wait_until_unlocked(path: &Path) {
    let directory = path.parent().expect("a file in a directory");
    let is_locked = |locks: &str| {
        let inodes = files_below(directory).into_iter().filter_map(|file| Some(file.metadata().ok()?.ino()));
        inodes.into_iter().any(|inode| locks.contains(&format!(":{inode} ")))
    };
    wait_until("the files are unlocked", || !is_locked(&fs::read_to_string("/proc/locks").expect("Linux")));
}

/// The records of a log with so many commits of so many entries each; `entry` makes those from id 1 on.
pub fn history(commits: u64, pets: i64, entry: impl Fn(i64) -> Entry) -> impl Iterator<Item = Record> {
    let mut previous = Digest::of(b"");
    let record = move |position: u64| {
        let first = (position.cast_signed() - 1) * pets + 1;
        let record = codec::encode(&Commit {
            previous,
            node: NodeId(7),
            position: Position(position),
            id: CommitId(Uuid::from_u128(position.into())),
            time: DateTime::UNIX_EPOCH,
            entries: (first..first + pets).map(&entry).collect(),
        });
        previous = Digest::of(&record.bytes);
        record
    };
    (1..=commits).map(record)
}

/// Fills a store of an embedded engine with so many commits of one pet.
pub fn fill_embedded(url: &str, commits: u64) {
    let (engine, path) = url.split_once(':').expect("the URL of an embedded engine");
    let path = Path::new(path);
    let log = open_embedded(engine, path);
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        append_in_batches(&*log, history(commits, 1, |id| added(id, "Rex"))).await;
        close_embedded(&*log, path).await;
    });
}

/// Appends many records at once to an empty log, as a copy does.
pub async fn append_in_batches(log: &dyn EventLog, records: impl Iterator<Item = Record>) {
    let (mut head, mut pending, mut records) = (Version::START, Vec::new(), records.peekable());
    while records.peek().is_some() || !pending.is_empty() {
        pending.extend(records.by_ref().take(ReadBound::APPEND.records - pending.len()));
        let last = log.append(head, &pending).await.expect("nothing else writes");
        let stored = usize::try_from(last.0 - head.position.0).expect("a few records");
        head = Version::at(last, pending[stored - 1].id);
        pending.drain(..stored);
    }
}

/// The entry that adds a pet with this name.
pub fn added(id: i64, name: &str) -> Entry {
    Entry { event: test_values::added(id, named(name)), by: OwnerId("owner".into()), request_key: None }
}
