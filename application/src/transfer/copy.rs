//! Copies a log into another one, byte for byte: up to its head, or for as long as it grows.
//!
//! The hash chain proves the common beginning of two logs, so only the last record of the target is compared.

use std::{collections::VecDeque, time::Duration};

use thiserror::Error;
use tokio::time::{self, Instant};

use super::{Tally, batch::Batch, commit_at, holds, not_visible};
use crate::{
    backoff::Backoff,
    log::commit::Commit,
    ports::{
        AppendError, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record, StoredRecord,
        Version, wait_for_records,
    },
};

/// How long to wait for a notification before the source is read anyway.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two appends of a continuous copy, unless they are full. An object store charges for each
/// request.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// The delay after an outage.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// The maximum number of attempts of an append whose outcome stays unknown.
const APPEND_TRIES_MAX: u32 = 20;
/// The delay between these attempts.
const APPEND_RETRY_DELAY: Duration = Duration::from_millis(500);

/// When a copy ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When the target holds everything that the source holds. The whole source is checked, and any error ends the
    /// copy.
    Head,
    /// When it is no longer polled, or with an error that a retry does not solve. The source is read from the last record
    /// of the target on, and outages of either side are retried.
    Stopped,
}

/// The progress of a copy.
#[derive(Debug)]
pub enum CopyStep<'a> {
    /// Both sides can be used, and the target ends at this position.
    Resumed(Position),
    /// The target holds this commit.
    Stored(&'a Commit),
    /// One side is unavailable. The copy retries.
    Waiting(&'a CopyError),
}

/// A failed copy, named by the side that failed.
#[derive(Debug, Error)]
pub enum CopyError {
    /// Reading the source failed.
    #[error("the source: {0}")]
    Source(LogError),
    /// Writing or reading the target failed.
    #[error("the target: {0}")]
    Target(LogError),
    /// The target holds a commit that the source does not. The target is not changed.
    #[error(
        "the target has a different history at position {0}: keep the target, and copy into an empty log"
    )]
    AnotherHistory(Position),
    /// The source of a continuous copy lacks commits that the target holds. The target is not changed.
    #[error(
        "the source ends at position {source_head}, but the target holds commits up to position {target_head}: the \
         source was restored to an older state or has a different history; keep the target, and check the source"
    )]
    SourceBehind {
        /// The last position of the source.
        source_head: Position,
        /// The last position of the target.
        target_head: Position,
    },
    /// Another process writes to the target.
    #[error("another process is writing to the target (position {0}): stop it and start again")]
    TargetInUse(Position),
}

/// The message contains that of the log, so there is no further cause to print.
impl From<LogError> for CopyError {
    fn from(error: LogError) -> Self {
        Self::Source(error)
    }
}

impl CopyError {
    /// Whether the side that failed may recover without help.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Source(error) => error.fault == Fault::Unreachable,
            Self::Target(error) => {
                matches!(error.fault, Fault::Unreachable | Fault::WriteFailed | Fault::Full)
            }
            Self::AnotherHistory(_) | Self::SourceBehind { .. } | Self::TargetInUse(_) => false,
        }
    }
}

/// Copies `from` into `to`, and counts in `tally` what the target holds. Resumes where an earlier copy stopped, and
/// rejects a target with a different history. A copy up to the head changes nothing in a target that holds the whole
/// source, and possibly more.
pub async fn copy(
    from: &dyn LogSource,
    to: &dyn EventLog,
    until: Until,
    tally: &mut Tally,
    mut report: impl FnMut(CopyStep<'_>),
) -> Result<(), CopyError> {
    let mut target = loop {
        match CopyTarget::open(to).await {
            Err(error) if until == Until::Stopped && error.is_temporary() => {
                report(CopyStep::Waiting(&error));
                time::sleep(RETRY.delay(1)).await;
            }
            opened => break opened?,
        }
    };
    if let (Until::Stopped, Some(last)) = (until, &target.last) {
        *tally = Tally::resume(last.clone()).map_err(CopyError::Target)?;
    }
    let mut failures = 0;
    loop {
        let before = tally.position();
        match copy_on(from, &mut target, until, tally, &mut report).await {
            Err(error) if until == Until::Stopped && error.is_temporary() => {
                report(CopyStep::Waiting(&error));
                failures = if tally.position() > before { 1 } else { failures + 1 };
                time::sleep(RETRY.delay(failures)).await;
            }
            ended => return ended,
        }
    }
}

/// Copies until the head is reached or something fails.
async fn copy_on(
    from: &dyn LogSource,
    target: &mut CopyTarget<'_>,
    until: Until,
    tally: &mut Tally,
    report: &mut impl FnMut(CopyStep<'_>),
) -> Result<(), CopyError> {
    if let Some(last) = tally.last() {
        compare(from, last).await?;
    }
    report(CopyStep::Resumed(tally.position()));
    let mut next_append = Instant::now();
    loop {
        if until == Until::Stopped {
            // Wait first, so that a running service counts this copy as a follower, and sends it everything before it
            // stops.
            wait_for_records(from, tally.position(), POLL_INTERVAL).await;
            time::sleep_until(next_append).await;
        }
        let records = tally.read_next(from, ReadBound::APPEND).await?;
        if records.is_empty() && until == Until::Head {
            return target.check_holds(tally.last()).await;
        }
        let mut batch = Batch::at(tally.position().next());
        let (mut intact, mut damage) = (VecDeque::new(), Ok(()));
        for record in records {
            match tally.check_next(&record) {
                Ok(commit) => {
                    batch.push(Record { id: commit.id, bytes: record.bytes.clone() });
                    intact.push_back((record, commit));
                }
                Err(error) => {
                    damage = Err(error);
                    break;
                }
            }
        }
        if !batch.is_full() {
            next_append = Instant::now() + FOLLOW_INTERVAL;
        }
        let mut failures = 0;
        while !batch.records.is_empty() {
            match target.store(&mut batch).await {
                Ok(count) => {
                    for (record, commit) in intact.drain(..count) {
                        tally.add_commit(record, &commit);
                        report(CopyStep::Stored(&commit));
                    }
                    if failures > 0 {
                        report(CopyStep::Resumed(tally.position()));
                    }
                    failures = 0;
                }
                Err(error) if until == Until::Stopped && error.is_temporary() => {
                    report(CopyStep::Waiting(&error));
                    failures += 1;
                    time::sleep(RETRY.delay(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
        damage?;
    }
}

/// The source must hold the last commit of the target.
async fn compare(from: &dyn LogSource, last: &StoredRecord) -> Result<(), CopyError> {
    let head = from.head().await?;
    if head < last.position {
        return Err(CopyError::SourceBehind { source_head: head, target_head: last.position });
    }
    match holds(from, last).await? {
        Some(true) => Ok(()),
        Some(false) => Err(CopyError::AnotherHistory(last.position)),
        None => Err(not_visible(last.position).into()),
    }
}

/// The log that is filled.
pub(super) struct CopyTarget<'a> {
    to: &'a dyn EventLog,
    /// The last record that the target holds, with its id.
    last: Option<StoredRecord>,
}

impl<'a> CopyTarget<'a> {
    pub(super) async fn open(to: &'a dyn EventLog) -> Result<Self, CopyError> {
        let last = async || {
            let head = to.head().await?;
            if head == Position::START {
                return Ok(None);
            }
            let (record, commit) = commit_at(to, head).await?;
            Ok(Some(StoredRecord { id: Some(commit.id), ..record }))
        };
        Ok(Self { to, last: last().await.map_err(CopyError::Target)? })
    }

    fn version(&self) -> Version {
        self.last.as_ref().map_or(Version::START, StoredRecord::version)
    }

    /// Stores a batch of the source.
    pub(super) async fn store_all(&mut self, batch: &mut Batch) -> Result<(), CopyError> {
        while !batch.records.is_empty() {
            self.store(batch).await?;
        }
        Ok(())
    }

    /// Removes the first records from a batch of the source, and returns how many. Those after the end of the target are
    /// appended to it. The others are not compared with the target, except the one at its end, which proves all before it.
    async fn store(&mut self, batch: &mut Batch) -> Result<usize, CopyError> {
        let before = self.version();
        let held = (before.position.0 + 1).saturating_sub(batch.first.0);
        let held = usize::try_from(held).unwrap_or(usize::MAX).min(batch.records.len());
        let count = if held == 0 { append(self.to, before, &batch.records).await? } else { held };
        let record = batch.records[count - 1].clone();
        let position = Position(batch.first.0 + count as u64 - 1);
        match &self.last {
            Some(last) if position == last.position && record.bytes != last.bytes => {
                return Err(CopyError::AnotherHistory(position));
            }
            Some(last) if position <= last.position => {}
            Some(_) | None => {
                self.last = Some(StoredRecord { position, id: Some(record.id), bytes: record.bytes });
            }
        }
        batch.remove(count);
        Ok(count)
    }

    /// A target that is longer than the source must hold the last record of the source.
    pub(super) async fn check_holds(&self, last: Option<&StoredRecord>) -> Result<(), CopyError> {
        let Some(last) = last.filter(|last| last.position < self.version().position) else { return Ok(()) };
        match holds(self.to, last).await.map_err(CopyError::Target)? {
            Some(true) => Ok(()),
            Some(false) | None => Err(CopyError::AnotherHistory(last.position)),
        }
    }
}

/// Appends the first of the records or more, and returns how many. Resolves an unclear outcome. A conflict with a record
/// that is not visible is retried: a new leader may not have applied the last record yet.
async fn append(to: &dyn EventLog, before: Version, records: &[Record]) -> Result<usize, CopyError> {
    let next = before.position.next();
    let mut unclear = None;
    for _ in 0..APPEND_TRIES_MAX {
        match to.append(before, records).await {
            Ok(last) => {
                let count = usize::try_from(last.0 - before.position.0);
                return Ok(count.expect("a log stores no more records than it is given"));
            }
            Err(AppendError::Unclear(error)) => unclear = Some(error),
            Err(AppendError::Conflict) => {}
            Err(AppendError::NotStored(error) | AppendError::Closed(error)) => {
                return Err(CopyError::Target(error));
            }
        }
        match to.read(before.position, ReadBound::APPEND).await {
            Ok(found) if found.is_empty() => {}
            Ok(found) => {
                let same =
                    found.iter().zip(records).take_while(|(found, record)| found.bytes == record.bytes);
                let count = same.count();
                return if count == 0 { Err(CopyError::TargetInUse(next)) } else { Ok(count) };
            }
            Err(error) => unclear = Some(error),
        }
        time::sleep(APPEND_RETRY_DELAY).await;
    }
    Err(unclear.map_or(CopyError::TargetInUse(next), CopyError::Target))
}
