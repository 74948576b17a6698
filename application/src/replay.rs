//! Applies many records at once: all cores decode and hash them, and one thread applies them in the order of the log.

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
    codec::{self, Decoded},
    digest::Digest,
    node_state::NodeState,
    ports::{LogError, Position, StoredRecord},
};

/// From this many bytes on it is worth waking other threads.
const WORTH_SHARING: usize = 256 * 1024;
/// How many bytes of records a thread takes at a time: so few that all threads end at about the same time.
const SHARE: usize = 64 * 1024;

/// How far a replay has come: what it has applied, and where the log ends. Probes show it while the service starts.
#[derive(Debug, Default)]
pub struct ReplayProgress {
    position: AtomicU64,
    head: AtomicU64,
}

impl ReplayProgress {
    /// The last position that was applied.
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

/// Whether there are so many records that other threads should help.
pub(crate) fn is_worth_sharing(records: &[StoredRecord]) -> bool {
    records.iter().map(|record| record.bytes.len()).sum::<usize>() >= WORTH_SHARING
}

/// Applies the records. Those before an error are applied.
pub(crate) fn apply(state: &NodeState, records: &[StoredRecord]) -> Result<(), LogError> {
    records.iter().try_for_each(|record| Checked::new(record)?.apply(state))
}

/// The same on all cores, whatever the order in which they finish. Blocks.
pub(crate) fn apply_on_all_cores(state: &NodeState, records: &[StoredRecord]) -> Result<(), LogError> {
    let (tasks, results): (Vec<_>, Vec<_>) = shares(records)
        .map(|share| {
            let (result, checked) = mpsc::sync_channel(1);
            ((share, result), checked)
        })
        .unzip();
    let tasks = Mutex::new(tasks.into_iter());
    let check = || {
        loop {
            let Some((share, result)) = tasks.lock().next() else { return };
            let checked: Vec<_> = share.iter().map(Checked::new).collect();
            if result.send(checked).is_err() {
                // An earlier record was refused.
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(check);
        }
        for checked in results {
            let checked = checked.recv().expect("a thread checks every record that it takes");
            checked.into_iter().try_for_each(|record| record?.apply(state))?;
        }
        Ok(())
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

/// A record that is sound by itself. Whether it follows the one before it is found out when it is applied.
struct Checked<'a> {
    commit: Decoded<'a>,
    digest: Digest,
}

impl<'a> Checked<'a> {
    fn new(record: &'a StoredRecord) -> Result<Self, LogError> {
        let commit = codec::read_stored(record)?;
        Ok(Self { commit, digest: Digest::of(&record.bytes) })
    }

    fn apply(&self, state: &NodeState) -> Result<(), LogError> {
        state.apply_view(&self.commit.view(), self.digest)
    }
}
