//! Applies many records fast: all cores decode and hash them, and one thread applies them in order.

use std::{
    num::NonZero,
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use parking_lot::Mutex;

use crate::{
    log::{
        codec,
        commit::{Commit, NodeId},
        digest::Digest,
    },
    node::state::NodeState,
    ports::{LogError, Position, StoredRecord},
};

/// The minimum size of a batch that is decoded on all cores.
const WORTH_SHARING: usize = 256 * 1024;
/// The size of a thread's share: small, so that all threads finish at about the same time.
const SHARE: usize = 64 * 1024;

/// The progress of a replay. Probes show it during startup.
#[derive(Debug, Default)]
pub struct ReplayProgress {
    position: AtomicU64,
    head: AtomicU64,
}

impl ReplayProgress {
    /// The last applied position.
    pub fn position(&self) -> Position {
        Position(self.position.load(Relaxed))
    }

    /// The last position of the log when the replay began. 0 until the log is open.
    pub fn head(&self) -> Position {
        Position(self.head.load(Relaxed))
    }

    pub(crate) fn record(&self, position: Position, head: Position) {
        self.head.store(head.0, Relaxed);
        self.position.store(position.0, Relaxed);
    }
}

/// Whether the records are enough to be decoded on all cores.
pub(crate) fn is_worth_sharing(records: &[StoredRecord]) -> bool {
    records.iter().map(|record| record.bytes.len()).sum::<usize>() >= WORTH_SHARING
}

/// The nodes that have written commits, with the positions of these.
type Authors = Vec<(Position, NodeId)>;

/// Applies the records, up to the first error.
pub(crate) fn apply(state: &NodeState, records: &[StoredRecord]) -> Result<Authors, LogError> {
    let mut authors = Authors::new();
    for record in records {
        let (commit, digest) = check(record)?;
        state.apply(&commit, digest)?;
        authors.push((commit.position, commit.node));
    }
    Ok(authors)
}

/// Applies the records, decoded on all cores. Blocks.
pub(crate) fn apply_on_all_cores(state: &NodeState, records: &[StoredRecord]) -> Result<Authors, LogError> {
    let (tasks, results): (Vec<_>, Vec<_>) = shares(records)
        .map(|share| {
            let (result, checked) = mpsc::sync_channel(1);
            ((share, result), checked)
        })
        .unzip();
    let tasks = Mutex::new(tasks.into_iter());
    let check_shares = || {
        loop {
            let Some((share, result)) = tasks.lock().next() else { return };
            let checked: Vec<_> = share.iter().map(check).collect();
            if result.send(checked).is_err() {
                // An earlier record was rejected.
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(check_shares);
        }
        let mut authors = Authors::new();
        for checked in results {
            let checked = checked.recv().expect("a thread checks every record that it takes");
            for record in checked {
                let (commit, digest) = record?;
                state.apply(&commit, digest)?;
                authors.push((commit.position, commit.node));
            }
        }
        Ok(authors)
    })
}

/// Parts of about the same size.
fn shares(records: &[StoredRecord]) -> impl Iterator<Item = &[StoredRecord]> {
    let mut size = 0;
    records.chunk_by(move |record, _| {
        size += record.bytes.len();
        let fits = size < SHARE;
        if !fits {
            size = 0;
        }
        fits
    })
}

/// Decodes and hashes a record. Whether it follows the previous one is checked later.
fn check(record: &StoredRecord) -> Result<(Commit, Digest), LogError> {
    Ok((codec::decode_stored(record)?, Digest::of(&record.bytes)))
}
