//! The check that a start from a snapshot puts off: the whole log is read and compared in the background, slowly, so that
//! damage to old records is found.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    task,
    time::{self, Instant},
};

use crate::{
    codec,
    history::History,
    ports::{Fault, LogError, Position, ReadBound, StoredRecord},
    replica::Replica,
    snapshot::{Restored, Snapshots},
};

/// How much is read at a time: milliseconds of work, so that nobody waits for it.
const STEP: ReadBound = ReadBound { records: 512, bytes: 512 * 1024 };
/// How long the check rests after each step, as a multiple of the time that the step took: it takes a fifth of one core.
const REST: u32 = 4;
/// How long to wait after the log could not be read.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often the same records are tried before they count as damaged, although the engine says that something else is wrong.
const TRIES_MAX: u32 = 10;

/// How far the log is known to be sound.
#[derive(Debug, Clone)]
pub(crate) struct Checked(Arc<AtomicU64>);

impl Checked {
    /// Nothing is known yet of a log that is only checked now.
    pub(crate) fn nothing() -> Self {
        Self(Arc::default())
    }

    /// Everything that was read, because a start has read all of it.
    pub(crate) fn everything() -> Self {
        Self(Arc::new(u64::MAX.into()))
    }

    /// The last position that was checked, of a log that was applied up to `applied`.
    pub(crate) fn up_to(&self, applied: Position) -> Position {
        Position(self.0.load(Relaxed)).min(applied)
    }

    fn reached(&self, position: Position) {
        self.0.store(position.0, Relaxed);
    }
}

/// Checks the log up to the commit that a node has started from.
pub(crate) struct LogCheck {
    pub(crate) replica: Replica,
    pub(crate) restored: Restored,
    pub(crate) snapshots: Snapshots,
    pub(crate) checked: Checked,
}

impl LogCheck {
    /// Reads on until everything is checked or something is wrong.
    pub(crate) async fn run(self) {
        let (begun, mut history) = (Instant::now(), History::default());
        let (replays, mut failures) = (self.replica.projection.replays(), 0);
        // The position after which damage was found once.
        let mut suspected = None;
        while history.version.position < self.restored.version.position {
            let step = Instant::now();
            let read = self.replica.log.read(history.version.position, STEP).await;
            if self.replica.projection.replays() != replays {
                // The log was replaced, and all of the other one was read.
                return self.checked.reached(Position(u64::MAX));
            }
            if history.version.position == Position::START
                && let Ok(Some(first)) = read.as_ref().map(|records| records.first())
                && !self.is_first(first)
            {
                // Another log is in its place, which is reported elsewhere.
                time::sleep(RETRY_PAUSE).await;
                continue;
            }
            let last = self.restored.version.position;
            let (grown, found) = match read {
                Ok(records) => add(history, records, last).await,
                Err(error) => (history, Err(error)),
            };
            history = grown;
            self.checked.reached(history.version.position);
            match found {
                Ok(()) => {
                    failures = 0;
                    time::sleep(step.elapsed() * REST).await;
                }
                Err(error) if is_final(&error) => {
                    // A log that is replaced while it is read looks damaged, too, and may come back.
                    if !self.is_in_place().await {
                        (history, suspected) = (History::default(), None);
                        time::sleep(RETRY_PAUSE).await;
                    } else if suspected == Some(history.version.position) {
                        return self.condemn(error).await;
                    } else {
                        suspected = Some(history.version.position);
                    }
                }
                Err(error) if failures == TRIES_MAX => {
                    let detail = format!(
                        "the records after position {} cannot be read: {error}",
                        history.version.position
                    );
                    return self.condemn(LogError::new(Fault::Damaged, detail)).await;
                }
                Err(error) => {
                    // A log that is away or closed for a while cannot be read either, and says so.
                    let is_open = error.fault != Fault::Unreachable && self.replica.log.head().await.is_ok();
                    failures += u32::from(is_open);
                    tracing::debug!("the check of the log waits: {error}");
                    time::sleep(RETRY_PAUSE).await;
                }
            }
        }
        if history.version == self.restored.version && history.head_hash == self.restored.head_hash {
            self.checked.reached(Position(u64::MAX));
            tracing::info!(
                "checked the log up to position {} in {:?}",
                history.version.position,
                begun.elapsed()
            );
        } else {
            let detail = "the log is not the one that the snapshot was taken of: replaying it from the start";
            let error = LogError::new(Fault::Diverged, detail);
            tracing::error!("{error}");
            self.snapshots.drop_all().await;
            self.replica.distrust(error).await;
        }
    }

    /// Whether the log is there, and not another one in its place.
    async fn is_in_place(&self) -> bool {
        match self.replica.log.read(Position::START, ReadBound::ONE).await {
            Ok(records) => records.first().is_some_and(|record| self.is_first(record)),
            Err(error) => is_final(&error),
        }
    }

    /// Whether the log begins with this record, which may be damaged.
    fn is_first(&self, record: &StoredRecord) -> bool {
        codec::decode_stored(record).map_or(true, |commit| commit.id == self.restored.first)
    }

    /// Nothing more is written to a damaged log, and the next start reads all of it.
    async fn condemn(&self, error: LogError) {
        let detail = format!("the check of the log has found an error: {error}");
        self.replica.condemn(&LogError::new(error.fault, detail));
        self.snapshots.drop_all().await;
    }
}

/// Adds the records up to `last` to the history, on a thread that nobody waits for.
async fn add(
    history: History,
    records: Vec<StoredRecord>,
    last: Position,
) -> (History, Result<(), LogError>) {
    let before = history.version.position;
    let grow = task::spawn_blocking(move || {
        let mut history = history;
        let added = records
            .iter()
            .take_while(|record| record.position <= last)
            .try_for_each(|record| history.add(&codec::decode_stored(record)?, &record.bytes).map(|_| ()));
        (history, added)
    });
    match grow.await {
        Ok((history, Ok(()))) if history.version.position == before => {
            let detail = format!("the log does not show the commit at position {}", before.next());
            (history, Err(LogError::new(Fault::Unreachable, detail)))
        }
        Ok(grown) => grown,
        Err(panic) => {
            let detail = format!("reading the log failed ({panic})");
            (History::default(), Err(LogError::new(Fault::Unreachable, detail)))
        }
    }
}

/// Whether the log stays like this: everything else passes, or is noticed by others.
fn is_final(error: &LogError) -> bool {
    match error.fault {
        Fault::Damaged | Fault::Foreign | Fault::UnsupportedFormat => true,
        Fault::Unreachable
        | Fault::WriteFailed
        | Fault::Full
        | Fault::FilesMissing
        | Fault::Diverged
        | Fault::AnotherLog
        | Fault::CannotOpen
        | Fault::TooLarge
        | Fault::NotDurable
        | Fault::Stopped => false,
    }
}
