//! How a copy handles failures of either side, one at a time, on a simulated clock.

use std::{sync::Arc, time::Duration};

use application::{
    ports::{EventLog, Fault, LogSource, Position},
    transfer::{self, CopyError, CopyStep, Tally},
};
use harness::{
    FaultyLog,
    LogFault::{self, Fails},
};
use tokio::time::{self, Instant};

const UNREACHABLE: LogFault = Fails(Fault::Unreachable);

async fn copied(from: &dyn EventLog, to: &dyn EventLog) -> Result<Tally, CopyError> {
    let mut tally = Tally::default();
    transfer::copy(from, to, &mut tally, |_| {}).await.map(|()| tally)
}

async fn history(commits: u64) -> Arc<FaultyLog> {
    FaultyLog::with_next(commits, &[], &[]).await
}

/// The delays before the retries of a continuous copy, in milliseconds, and its end: `None` if it does not end.
async fn follow(from: &FaultyLog, to: &FaultyLog) -> (Vec<u128>, Option<CopyError>) {
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

#[tokio::test(start_paused = true)]
async fn a_continuous_copy_retries_with_growing_delays_and_resumes() {
    let from = FaultyLog::with_next(3, &[UNREACHABLE; 3], &[]).await;
    let faults = [Fault::Unreachable, Fault::WriteFailed, Fault::Full].map(Fails);
    let to = FaultyLog::with_next(0, &[], &faults).await;
    let (delays, ended) = follow(&from, &to).await;
    assert_eq!(delays, [250, 500, 1_000, 250, 500, 1_000], "first of the source, then of the target");
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(to.head().await, Ok(Position(3)));
}

#[tokio::test(start_paused = true)]
async fn the_delay_of_a_continuous_copy_starts_again_after_progress() {
    let reads = [UNREACHABLE, UNREACHABLE, LogFault::None, UNREACHABLE];
    let from = FaultyLog::with_next(1, &reads, &[]).await;
    let (delays, _) = follow(&from, &FaultyLog::default()).await;
    assert_eq!(delays, [250, 500, 250]);
}

#[tokio::test(start_paused = true)]
async fn a_continuous_copy_ends_when_a_retry_cannot_help() {
    let from = FaultyLog::with_next(3, &[Fails(Fault::Damaged)], &[]).await;
    let (delays, ended) = follow(&from, &FaultyLog::default()).await;
    assert!(delays.is_empty() && matches!(ended, Some(CopyError::Source(_))), "{ended:?}");
    let to = FaultyLog::with_next(0, &[], &[Fails(Fault::CannotOpen)]).await;
    let (delays, ended) = follow(&*history(3).await, &to).await;
    assert!(delays.is_empty() && matches!(ended, Some(CopyError::Target(_))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_up_to_the_head_never_retries() {
    let from = FaultyLog::with_next(3, &[UNREACHABLE; 9], &[]).await;
    let ended = copied(&*from, &FaultyLog::default()).await.unwrap_err();
    assert!(matches!(ended, CopyError::Source(_)), "{ended}");
    let (ended, _) = copied_with(&[UNREACHABLE; 9]).await;
    assert!(matches!(ended, Err(CopyError::Target(_))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_continuous_copy_resumes_only_onto_a_beginning_of_its_source() {
    let (from, to) = (history(3).await, FaultyLog::default());
    copied(&*from, &to).await.unwrap();
    let (_, ended) = follow(&from, &to).await;
    assert!(ended.is_none(), "the target holds everything: {ended:?}");
    let (_, ended) = follow(&from, &*history(2).await).await;
    assert!(matches!(ended, Some(CopyError::AnotherHistory(Position(2)))), "{ended:?}");
    from.next_reads(&[LogFault::ShowsNothing]);
    let (delays, ended) = follow(&from, &to).await;
    assert_eq!(delays, [250], "a record that is not visible yet is read again");
    assert!(ended.is_none(), "{ended:?}");
}

/// Copies a history of two commits, in one batch.
async fn copied_with(appends: &[LogFault]) -> (Result<Tally, CopyError>, Arc<FaultyLog>) {
    let to = FaultyLog::with_next(0, &[], appends).await;
    (copied(&*history(2).await, &*to).await, to)
}

#[tokio::test(start_paused = true)]
async fn a_failure_within_a_batch_does_not_hide_the_commits_before_it() {
    let full = Fails(Fault::Full);
    let (ended, to) = copied_with(&[LogFault::None, full]).await;
    assert!(ended.is_ok(), "the next attempt begins with the commit that failed: {ended:?}");
    assert_eq!(to.head().await, Ok(Position(2)));
    let to = FaultyLog::with_next(0, &[], &[LogFault::None, full, full]).await;
    let mut tally = Tally::default();
    let ended = transfer::copy(&*history(3).await, &*to, &mut tally, |_| {}).await;
    assert!(matches!(ended, Err(CopyError::Target(_))), "{ended:?}");
    assert_eq!((tally.position(), to.head().await), (Position(1), Ok(Position(1))));
}

#[tokio::test(start_paused = true)]
async fn an_append_with_an_unclear_outcome_is_stored_exactly_once() {
    for fault in [LogFault::LosesTheResponse, LogFault::LosesTheAppend, LogFault::ReportsConflicts] {
        for appends in [&[fault][..], &[LogFault::None, fault]] {
            let (copied, to) = copied_with(appends).await;
            assert_eq!(copied.unwrap().position(), Position(2), "{fault:?}");
            assert_eq!(to.head().await, Ok(Position(2)), "{fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_whose_outcome_stays_unclear_ends_the_copy() {
    let (ended, _) = copied_with(&[LogFault::LosesTheAppend; 20]).await;
    assert!(matches!(ended, Err(CopyError::Target(_))), "{ended:?}");
    let (ended, _) = copied_with(&[LogFault::ReportsConflicts; 20]).await;
    assert!(matches!(ended, Err(CopyError::TargetInUse(Position(1)))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_another_process_writes_to_is_reported() {
    let (ended, to) = copied_with(&[LogFault::Overtaken]).await;
    assert!(matches!(ended, Err(CopyError::TargetInUse(Position(1)))), "{ended:?}");
    assert_eq!(to.head().await, Ok(Position(1)), "nothing is written over it");
    let (ended, to) = copied_with(&[LogFault::None, LogFault::Overtaken]).await;
    assert!(matches!(ended, Err(CopyError::TargetInUse(Position(2)))), "{ended:?}");
    assert_eq!(to.head().await, Ok(Position(2)), "nothing is written after it");
}
