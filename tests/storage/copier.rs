//! How a copy handles failures of either side, one at a time, on a simulated clock.

use std::{collections::VecDeque, time::Duration};

use adapters::event_log::memory::MemoryLog;
use application::{
    log::contract,
    ports::{
        AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record,
        StoredRecord, Version,
    },
    transfer::{self, CopyError, CopyStep, Tally},
};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{self, Instant},
};

/// The outcome of a call.
#[derive(Debug, Clone, Copy)]
enum Failure {
    /// The call succeeds.
    None,
    /// The call fails with this fault. An append stores nothing.
    Fails(Fault),
    /// The append is stored, and its response is lost.
    ResponseLost,
    /// The append is not stored, and its outcome is unclear.
    RequestLost,
    /// The append conflicts, although nothing is stored at its position.
    ConflictsWithNothing,
    /// Another process appends first.
    Overtaken,
    /// The log shows nothing.
    ShowsNothing,
}

/// A log whose next calls fail as listed.
struct Failing {
    log: MemoryLog,
    reads: Mutex<VecDeque<Failure>>,
    appends: Mutex<VecDeque<Failure>>,
}

impl Failing {
    fn new(log: MemoryLog) -> Self {
        Self { log, reads: Mutex::default(), appends: Mutex::default() }
    }
}

fn next(failures: &Mutex<VecDeque<Failure>>) -> Option<Failure> {
    failures.lock().pop_front()
}

#[async_trait]
impl LogSource for Failing {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        match next(&self.reads) {
            Some(Failure::Fails(fault)) => Err(fault.error("cannot read")),
            Some(Failure::ShowsNothing) => Ok(vec![]),
            Some(_) | None => self.log.read(after, bound).await,
        }
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.log.head().await
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.log.changes()
    }

    fn durability(&self) -> Durability {
        self.log.durability()
    }
}

#[async_trait]
impl EventLog for Failing {
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let mut head = expected;
        for record in records {
            match self.append_one(head, record).await {
                Ok(_) => head = head.then(record.id),
                Err(_) if head != expected => break,
                Err(error) => return Err(error),
            }
        }
        Ok(head.position)
    }
}

impl Failing {
    async fn append_one(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let record = std::slice::from_ref(record);
        let lost = || AppendError::Unclear(Fault::Unreachable.error("no response"));
        match next(&self.appends) {
            Some(Failure::Fails(fault)) => Err(AppendError::NotStored(fault.error("rejected"))),
            Some(Failure::ResponseLost) => {
                self.log.append(expected, record).await?;
                Err(lost())
            }
            Some(Failure::RequestLost) => Err(lost()),
            Some(Failure::ConflictsWithNothing) => Err(AppendError::Conflict),
            Some(Failure::Overtaken) => {
                contract::fill(&self.log, expected, 1).await;
                self.log.append(expected, record).await
            }
            Some(Failure::None | Failure::ShowsNothing) | None => self.log.append(expected, record).await,
        }
    }
}

async fn copied(from: &dyn EventLog, to: &dyn EventLog) -> Result<Tally, CopyError> {
    let mut tally = Tally::default();
    transfer::copy(from, to, &mut tally, |_| {}).await.map(|()| tally)
}

async fn history(commits: u64) -> MemoryLog {
    let log = MemoryLog::default();
    contract::fill(&log, Version::START, commits).await;
    log
}

/// The delays before the retries of a continuous copy, in milliseconds, and its end: `None` if it does not end.
async fn follow(from: &Failing, to: &Failing) -> (Vec<u128>, Option<CopyError>) {
    let mut failed: Option<Instant> = None;
    let mut delays = Vec::new();
    let open = async || Ok::<(&dyn LogSource, &dyn EventLog), _>((from, to));
    let copying = transfer::follow(open, |step| match step {
        CopyStep::Waiting(_) => {
            delays.extend(failed.map(|failed| failed.elapsed().as_millis()));
            failed = Some(Instant::now());
        }
        CopyStep::Resumed(_) | CopyStep::Stored(_) => {
            delays.extend(failed.take().map(|failed| failed.elapsed().as_millis()));
        }
    });
    let ended = time::timeout(Duration::from_mins(10), copying).await.ok();
    (delays, ended)
}

fn failing(faults: &[Fault]) -> Mutex<VecDeque<Failure>> {
    Mutex::new(faults.iter().copied().map(Failure::Fails).collect())
}

#[tokio::test(start_paused = true)]
async fn a_continuous_copy_retries_with_growing_delays_and_resumes() {
    use Fault::{Full, Unreachable, WriteFailed};
    let from = Failing { reads: failing(&[Unreachable; 3]), ..Failing::new(history(3).await) };
    let to =
        Failing { appends: failing(&[Unreachable, WriteFailed, Full]), ..Failing::new(history(0).await) };
    let (delays, ended) = follow(&from, &to).await;
    assert_eq!(delays, [250, 500, 1_000, 250, 500, 1_000], "first of the source, then of the target");
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(to.head().await, Ok(Position(3)));
}

#[tokio::test(start_paused = true)]
async fn the_delay_of_a_continuous_copy_starts_again_after_progress() {
    let fails = Failure::Fails(Fault::Unreachable);
    let reads = Mutex::new([fails, fails, Failure::None, fails].into());
    let from = Failing { reads, ..Failing::new(history(1).await) };
    let (delays, _) = follow(&from, &Failing::new(MemoryLog::default())).await;
    assert_eq!(delays, [250, 500, 250]);
}

#[tokio::test(start_paused = true)]
async fn a_continuous_copy_ends_when_a_retry_cannot_help() {
    let from = Failing { reads: failing(&[Fault::Damaged]), ..Failing::new(history(3).await) };
    let (delays, ended) = follow(&from, &Failing::new(MemoryLog::default())).await;
    assert!(delays.is_empty() && matches!(ended, Some(CopyError::Source(_))), "{ended:?}");
    let to = Failing { appends: failing(&[Fault::CannotOpen]), ..Failing::new(MemoryLog::default()) };
    let (delays, ended) = follow(&Failing::new(history(3).await), &to).await;
    assert!(delays.is_empty() && matches!(ended, Some(CopyError::Target(_))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_up_to_the_head_never_retries() {
    let unreachable = || failing(&[Fault::Unreachable; 9]);
    let from = Failing { reads: unreachable(), ..Failing::new(history(3).await) };
    let ended = copied(&from, &MemoryLog::default()).await.unwrap_err();
    assert!(matches!(ended, CopyError::Source(_)), "{ended}");
    let to = Failing { appends: unreachable(), ..Failing::new(MemoryLog::default()) };
    let ended = copied(&history(3).await, &to).await.unwrap_err();
    assert!(matches!(ended, CopyError::Target(_)), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn a_continuous_copy_resumes_only_onto_a_beginning_of_its_source() {
    let from = Failing::new(history(3).await);
    let to = Failing::new(MemoryLog::default());
    copied(&from, &to).await.unwrap();
    let (_, ended) = follow(&from, &to).await;
    assert!(ended.is_none(), "the target holds everything: {ended:?}");
    let (_, ended) = follow(&from, &Failing::new(history(2).await)).await;
    assert!(matches!(ended, Some(CopyError::AnotherHistory(Position(2)))), "{ended:?}");
    let behind = Failing { reads: Mutex::new([Failure::ShowsNothing].into()), ..from };
    let (delays, ended) = follow(&behind, &to).await;
    assert_eq!(delays, [250], "a record that is not visible yet is read again");
    assert!(ended.is_none(), "{ended:?}");
}

/// Copies a history of two commits, in one batch.
async fn copied_with(appends: impl Into<VecDeque<Failure>>) -> (Result<Tally, CopyError>, Failing) {
    let to = Failing { appends: Mutex::new(appends.into()), ..Failing::new(MemoryLog::default()) };
    (copied(&history(2).await, &to).await, to)
}

#[tokio::test(start_paused = true)]
async fn a_failure_within_a_batch_does_not_hide_the_commits_before_it() {
    let (ended, to) = copied_with([Failure::None, Failure::Fails(Fault::Full)]).await;
    assert!(ended.is_ok(), "the next attempt begins with the commit that failed: {ended:?}");
    assert_eq!(to.head().await, Ok(Position(2)));
    let appends =
        Mutex::new([Failure::None, Failure::Fails(Fault::Full), Failure::Fails(Fault::Full)].into());
    let to = Failing { appends, ..Failing::new(MemoryLog::default()) };
    let mut tally = Tally::default();
    let ended = transfer::copy(&history(3).await, &to, &mut tally, |_| {}).await;
    assert!(matches!(ended, Err(CopyError::Target(_))), "{ended:?}");
    assert_eq!((tally.position(), to.head().await), (Position(1), Ok(Position(1))));
}

#[tokio::test(start_paused = true)]
async fn an_append_with_an_unclear_outcome_is_stored_exactly_once() {
    for failure in [Failure::ResponseLost, Failure::RequestLost, Failure::ConflictsWithNothing] {
        for appends in [vec![failure], vec![Failure::None, failure]] {
            let (copied, to) = copied_with(appends).await;
            assert_eq!(copied.unwrap().position(), Position(2), "{failure:?}");
            assert_eq!(to.head().await, Ok(Position(2)), "{failure:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_whose_outcome_stays_unclear_ends_the_copy() {
    let (ended, _) = copied_with([Failure::RequestLost; 20]).await;
    assert!(matches!(ended, Err(CopyError::Target(_))), "{ended:?}");
    let (ended, _) = copied_with([Failure::ConflictsWithNothing; 20]).await;
    assert!(matches!(ended, Err(CopyError::TargetInUse(Position(1)))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_another_process_writes_to_is_reported() {
    let (ended, to) = copied_with([Failure::Overtaken]).await;
    assert!(matches!(ended, Err(CopyError::TargetInUse(Position(1)))), "{ended:?}");
    assert_eq!(to.head().await, Ok(Position(1)), "nothing is written over it");
    let (ended, to) = copied_with([Failure::None, Failure::Overtaken]).await;
    assert!(matches!(ended, Err(CopyError::TargetInUse(Position(2)))), "{ended:?}");
    assert_eq!(to.head().await, Ok(Position(2)), "nothing is written after it");
}
