//! Copies a log into another one, byte for byte: up to its head, or for as long as it grows.
//!
//! The hash chain proves the common beginning of two logs, so only the last record of the target is compared.

use std::{convert::Infallible, time::Duration};

use thiserror::Error;
use tokio::time::{self, Instant};

use super::{Tally, commit_at, holds, not_visible};
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
const RETRY: Backoff = Backoff { first: Duration::from_millis(250), max: Duration::from_secs(5) };
/// The maximum number of attempts of an append whose outcome stays unknown.
const APPEND_TRIES_MAX: u32 = 20;
/// The delay between these attempts.
const APPEND_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The progress of a copy that follows its source.
#[derive(Debug)]
pub enum CopyStep<'a> {
    /// Both sides can be used, and the copy continues after this position.
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
/// rejects a target with a different history. The whole source is checked, and any error ends the copy. Changes nothing in a
/// target that holds the whole source, and possibly more.
pub async fn copy(
    from: &dyn LogSource,
    to: &dyn EventLog,
    tally: &mut Tally,
    mut stored: impl FnMut(&Commit),
) -> Result<(), CopyError> {
    let mut target = CopyTarget::open(to).await?;
    loop {
        let before = tally.position();
        target.advance(from, tally, &mut stored).await?;
        if tally.position() == before {
            return target.check_holds(tally.last.as_ref()).await;
        }
    }
}

/// Copies from the last record of the target on until it is no longer polled, or until an error that a retry does not solve.
/// After each outage of either side, `open` returns both logs.
pub async fn follow<'a>(
    mut open: impl AsyncFnMut() -> Result<(&'a dyn LogSource, &'a dyn EventLog), CopyError>,
    mut report: impl FnMut(CopyStep<'_>),
) -> CopyError {
    // The consecutive failures of one side.
    let (mut failures, mut of_target) = (0, false);
    loop {
        let ended = async {
            let (from, to) = open().await?;
            follow_on(from, to, &mut failures, &mut report).await
        };
        let Err(error) = ended.await;
        if !error.is_temporary() {
            return error;
        }
        report(CopyStep::Waiting(&error));
        let is_of_target = matches!(error, CopyError::Target(_));
        failures = if is_of_target == of_target { failures + 1 } else { 1 };
        of_target = is_of_target;
        time::sleep(RETRY.delay(failures)).await;
    }
}

/// Copies until something fails.
async fn follow_on(
    from: &dyn LogSource,
    to: &dyn EventLog,
    failures: &mut u32,
    report: &mut impl FnMut(CopyStep<'_>),
) -> Result<Infallible, CopyError> {
    let mut target = CopyTarget::open(to).await?;
    let mut tally = Tally::default();
    if let Some(last) = &target.last {
        compare(from, last).await?;
        tally = Tally::resume(last.clone()).map_err(CopyError::Target)?;
    }
    // A running service counts this copy as a follower from here on, and sends it everything before it stops.
    drop(from.changes());
    let mut is_resumed = false;
    loop {
        let before = (tally.position().0, tally.bytes);
        target.advance(from, &mut tally, &mut |commit| report(CopyStep::Stored(commit))).await?;
        if !is_resumed {
            report(CopyStep::Resumed(Position(before.0)));
        }
        (is_resumed, *failures) = (true, 0);
        let (records, bytes) = (tally.position().0 - before.0, tally.bytes - before.1);
        let is_full = records >= ReadBound::APPEND.records as u64 || bytes >= ReadBound::APPEND.bytes as u64;
        let next_append = Instant::now() + if is_full { Duration::ZERO } else { FOLLOW_INTERVAL };
        wait_for_records(from, tally.position(), POLL_INTERVAL).await;
        time::sleep_until(next_append).await;
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
        let head = to.head().await.map_err(CopyError::Target)?;
        let mut last = None;
        if head > Position::START {
            let (record, commit) = commit_at(to, head).await.map_err(CopyError::Target)?;
            last = Some(StoredRecord { id: Some(commit.id), ..record });
        }
        Ok(Self { to, last })
    }

    fn version(&self) -> Version {
        self.last.as_ref().map_or(Version::START, StoredRecord::version)
    }

    /// Stores the next records of the source.
    async fn advance(
        &mut self,
        from: &dyn LogSource,
        tally: &mut Tally,
        stored: &mut impl FnMut(&Commit),
    ) -> Result<(), CopyError> {
        let records = tally.read_next(from, ReadBound::APPEND).await?;
        let (mut intact, mut checked) = (Vec::with_capacity(records.len()), Ok(()));
        for record in records {
            match tally.check_next(&record) {
                Ok(commit) => intact.push((record, commit)),
                Err(error) => {
                    checked = Err(error);
                    break;
                }
            }
        }
        self.store_all(&mut intact, tally, stored).await?;
        Ok(checked?)
    }

    /// Stores these commits of the source, which follow those in `tally`. Those after the end of the target are appended to it.
    /// The others are not compared with the target, except the one at its end, which proves all before it.
    pub(super) async fn store_all(
        &mut self,
        commits: &mut Vec<(StoredRecord, Commit)>,
        tally: &mut Tally,
        stored: &mut impl FnMut(&Commit),
    ) -> Result<(), CopyError> {
        let record =
            |(record, commit): &(StoredRecord, Commit)| Record { id: commit.id, bytes: record.bytes.clone() };
        let records: Vec<_> = commits.iter().map(record).collect();
        let (mut commits, mut rest) = (commits.drain(..), &records[..]);
        while !rest.is_empty() {
            let before = self.version();
            let held = before.position.0.saturating_sub(tally.position().0);
            let held = usize::try_from(held).unwrap_or(usize::MAX).min(rest.len());
            let count = if held == 0 { append(self.to, before, rest).await? } else { held };
            let Record { id, bytes } = rest[count - 1].clone();
            let position = Position(tally.position().0 + count as u64);
            if held == 0 {
                self.last = Some(StoredRecord { position, id: Some(id), bytes });
            } else if self.last.as_ref().is_some_and(|last| last.position == position && last.bytes != bytes)
            {
                return Err(CopyError::AnotherHistory(position));
            }
            for (record, commit) in commits.by_ref().take(count) {
                tally.add_commit(record, &commit);
                stored(&commit);
            }
            rest = &rest[count..];
        }
        Ok(())
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
