//! Copies a history into a log that may already hold the beginning of it.

use std::{collections::VecDeque, time::Duration};

use thiserror::Error;
use tokio::time;

use super::{Broken, Summary, walk};
use crate::ports::{
    AppendError, CommitId, EventLog, LogError, LogSource, Position, ReadBound, Record, StoredRecord, Version,
};

/// How often an append is tried whose outcome stays unknown.
const TRIES_MAX: u32 = 20;
/// The pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

const HOW_TO_RAISE: &str = "choose another engine, or raise the limit of its servers (NATS: max_payload)";

/// Why a history was not copied, named by the side that failed.
#[derive(Debug, Error)]
pub enum CopyError {
    /// The log that is copied cannot be read.
    #[error("the source: {0}")]
    Source(#[from] LogError),
    /// The log that is filled cannot be written or read.
    #[error("the target: {0}")]
    Target(LogError),
    /// The target holds something that the source does not: it is left as it is.
    #[error("the target has a different history from position {0} on: choose an empty log")]
    AnotherHistory(Position),
    /// A record of the source is larger than the target takes: nothing was copied.
    #[error("a record of {largest} bytes is larger than the {limit} that the target takes: {HOW_TO_RAISE}")]
    TooLarge {
        /// The size of the largest record.
        largest: usize,
        /// What the target takes.
        limit: usize,
    },
    /// Somebody else writes to the target.
    #[error("another process is writing to the target (position {0}): stop it and start again")]
    TargetInUse(Position),
}

impl CopyError {
    /// Refuses a target that does not take a record of this size.
    pub fn check_size(largest: usize, to: &dyn EventLog) -> Result<(), Self> {
        let limit = to.record_limit();
        if largest > limit { Err(Self::TooLarge { largest, limit }) } else { Ok(()) }
    }
}

/// Copies `from` into `to`, byte for byte. Goes on where an earlier copy stopped; refuses a target that holds
/// anything else, and one that does not take every record before anything is copied.
pub async fn copy(
    from: &dyn LogSource,
    to: &dyn EventLog,
    mut progress: impl FnMut(Position),
) -> Result<Summary, Broken<CopyError>> {
    if to.record_limit() < usize::MAX {
        // What ends this walk ends the next one too, and is reported there.
        let walked = walk::<LogError>(from, async |_, _| Ok(())).await;
        let readable = walked.unwrap_or_else(|broken| *broken.sound);
        if let Err(error) = CopyError::check_size(readable.largest, to) {
            return Err(Broken { sound: Box::default(), error });
        }
    }
    let mut intake = Intake::new(to);
    let summary = walk(from, async |record, commit| {
        intake.take(record, commit.id).await?;
        progress(record.position);
        Ok(())
    })
    .await?;
    match intake.nothing_beyond(summary.last).await {
        Ok(()) => Ok(summary),
        Err(error) => Err(Broken { sound: Box::new(summary), error }),
    }
}

/// Takes the records of a history in order: compares those that the target has, appends those that it lacks.
pub(super) struct Intake<'a> {
    to: &'a dyn EventLog,
    /// The last commit that was taken.
    last: Version,
    ahead: Ahead,
}

/// What the target holds after the last commit that was taken.
enum Ahead {
    Unknown,
    Held(VecDeque<StoredRecord>),
    /// It ended there. If somebody else writes to it, the next append fails.
    Nothing,
}

impl<'a> Intake<'a> {
    pub(super) fn new(to: &'a dyn EventLog) -> Self {
        Self::after(to, Version::START)
    }

    /// Goes on after a commit that the target holds.
    pub(super) fn after(to: &'a dyn EventLog, last: Version) -> Self {
        Self { to, last, ahead: Ahead::Unknown }
    }

    /// Forgets what is known of the target: an append that failed may have stored its record.
    pub(super) fn look_again(&mut self) {
        self.ahead = Ahead::Unknown;
    }

    pub(super) async fn take(&mut self, record: &StoredRecord, id: CommitId) -> Result<(), CopyError> {
        match self.held_next().await? {
            Some(held) if held == *record => {}
            Some(_) => return Err(CopyError::AnotherHistory(record.position)),
            None => append(self.to, self.last, &Record { id, bytes: record.bytes.clone() }).await?,
        }
        self.last = Version::at(record.position, id);
        Ok(())
    }

    /// The target must end where the history ends.
    pub(super) async fn nothing_beyond(&mut self, last: Position) -> Result<(), CopyError> {
        let beyond = match &self.ahead {
            Ahead::Held(records) if !records.is_empty() => true,
            Ahead::Unknown | Ahead::Held(_) | Ahead::Nothing => {
                !self.to.read(last, ReadBound::ONE).await.map_err(CopyError::Target)?.is_empty()
            }
        };
        if beyond { Err(CopyError::AnotherHistory(last.next())) } else { Ok(()) }
    }

    async fn held_next(&mut self) -> Result<Option<StoredRecord>, CopyError> {
        loop {
            match &mut self.ahead {
                Ahead::Nothing => return Ok(None),
                Ahead::Held(records) if !records.is_empty() => return Ok(records.pop_front()),
                Ahead::Unknown | Ahead::Held(_) => {
                    let read = self.to.read(self.last.position, ReadBound::BATCH).await;
                    let records = read.map_err(CopyError::Target)?;
                    self.ahead =
                        if records.is_empty() { Ahead::Nothing } else { Ahead::Held(records.into()) };
                }
            }
        }
    }
}

/// Appends the record, and finds out what became of it when the log cannot tell.
pub(super) async fn append(to: &dyn EventLog, before: Version, record: &Record) -> Result<(), CopyError> {
    let next = before.position.next();
    let mut in_doubt = None;
    for _ in 0..TRIES_MAX {
        match to.append(before, record).await {
            Ok(_) => return Ok(()),
            Err(AppendError::Unclear(error)) => in_doubt = Some(error),
            Err(AppendError::Conflict) => {}
            Err(AppendError::NotStored(error) | AppendError::Closed(error)) => {
                return Err(CopyError::Target(error));
            }
        }
        match to.read(before.position, ReadBound::ONE).await {
            Ok(found) if found.first().is_some_and(|found| found.bytes == record.bytes) => return Ok(()),
            Ok(found) if found.is_empty() && in_doubt.is_some() => {}
            Ok(_) => return Err(CopyError::TargetInUse(next)),
            Err(error) => in_doubt = Some(error),
        }
        time::sleep(RETRY_PAUSE).await;
    }
    Err(in_doubt.map_or(CopyError::TargetInUse(next), CopyError::Target))
}
