//! What callers of `create` see when an append fails: one fault of the log per test.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use application::{PetStore, WriteError, ports::Fault};
use harness::{Call, FaultyLog, LogFault, all_pets, eventually_ok, serve_node};
use tokio::task;

use super::log_faults::{alone, create};

/// The ids that readers see.
fn visible(store: &PetStore) -> Vec<i64> {
    all_pets(store).unwrap().iter().map(|pet| pet.id.get()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_unclear_append_ends_with_exactly_one_pet() {
    for (fault, id, commits) in [
        (LogFault::None, 1, 1),
        (LogFault::LosesTheResponse, 1, 1),
        (LogFault::LosesTheAppend, 1, 1),
        (LogFault::LandsLate, 1, 1),
        (LogFault::LandsLateWhileDisconnected, 1, 1),
        (LogFault::OvertakenUnseen, 2, 2),
        (LogFault::Overtaken, 2, 2),
    ] {
        let log = FaultyLog::with(fault);
        let store = alone(&log).await;
        assert_eq!(create(&store).await, Ok(id), "{fault:?}");
        assert_eq!(visible(&store), (1..=id).collect::<Vec<_>>(), "{fault:?}");
        assert_eq!(log.commits().await, commits, "{fault:?}");
        assert_eq!(store.health().not_ready(), None, "{fault:?}");
    }
}

/// A lost reply is no conflict, even if another node has appended: the commit was sent only once.
#[tokio::test(start_paused = true)]
async fn only_a_conflict_counts_as_a_conflict_and_only_a_repetition_as_a_retry() {
    for (fault, conflicts, retries) in [
        (LogFault::None, 0, 0),
        (LogFault::Overtaken, 1, 0),
        (LogFault::OvertakenUnseen, 0, 0),
        (LogFault::LosesTheResponse, 0, 0),
        (LogFault::LosesTheAppend, 0, 1),
        // The second copy conflicts with the first one.
        (LogFault::LandsLate, 0, 1),
    ] {
        let store = alone(&FaultyLog::with(fault)).await;
        create(&store).await.unwrap();
        let statistics = store.statistics();
        let counted = (statistics.conflicts.load(Relaxed), statistics.retries.load(Relaxed));
        assert_eq!(counted, (conflicts, retries), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn records_that_are_too_large_are_rejected_and_the_next_one_is_stored() {
    let log = FaultyLog::with(LogFault::None);
    let store = alone(&log).await;
    for _ in 0..3 {
        log.fails_with(LogFault::Fails(Fault::TooLarge));
        assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::TooLarge)));
        assert_eq!(visible(&store), Vec::<i64>::new());
        assert_eq!(store.health().not_ready(), None, "the log is still sound");
    }
    assert_eq!(create(&store).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_closed_log_rejects_writes_serves_reads_and_recovers_by_itself() {
    for (fault, there_afterwards) in
        [(LogFault::ClosesBeforeStoring, vec![1]), (LogFault::ClosesAfterStoring, vec![1, 2])]
    {
        let log = FaultyLog::with(fault);
        let store = alone(&log).await;
        assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::WriteFailed)), "{fault:?}");
        assert_eq!(visible(&store), Vec::<i64>::new(), "{fault:?}: nothing that was rejected is shown");
        assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::WriteFailed)), "{fault:?}");
        assert_eq!(
            store.health().not_ready().map(|error| error.fault),
            Some(Fault::WriteFailed),
            "{fault:?}"
        );
        while store.health().not_ready().is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(create(&store).await.is_ok(), "{fault:?}");
        assert_eq!(visible(&store), there_afterwards, "{fault:?}");
    }
}

#[tokio::test]
async fn creates_that_wait_together_share_a_commit() {
    // One more than the most events in a commit begins another one.
    for (creates, commits) in [(1, 1), (2, 1), (1_024, 1), (1_025, 2)] {
        let log = FaultyLog::with(LogFault::None);
        let store = alone(&log).await;
        let outcomes = all_at_once(&Arc::new(store), creates).await;
        assert_eq!(outcomes, (1..).take(creates).map(Ok).collect::<Vec<_>>());
        assert_eq!(log.commits().await, commits, "{creates} creates");
    }
}

#[tokio::test]
async fn a_full_queue_is_busy_and_loses_no_accepted_request() {
    let store = Arc::new(alone(&FaultyLog::with(LogFault::None)).await);
    let outcomes = all_at_once(&store, PetStore::QUEUE_MAX + 10).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(WriteError::Busy)).count(), 10);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), PetStore::QUEUE_MAX);
}

/// The outcomes of so many creates. There is one thread, and it begins all of them before the writer takes the first.
async fn all_at_once(store: &Arc<PetStore>, creates: usize) -> Vec<Result<i64, WriteError>> {
    let create = |_| {
        let store = store.clone();
        task::spawn(async move { create(&store).await })
    };
    let begun: Vec<_> = (0..creates).map(create).collect();
    let mut outcomes = Vec::new();
    for outcome in begun {
        outcomes.push(outcome.await.unwrap());
    }
    outcomes
}

#[tokio::test]
async fn closing_replies_to_every_accepted_request() {
    let log = FaultyLog::with(LogFault::None);
    let store = alone(&log).await;
    let (first, second) = (create(&store), create(&store));
    assert_eq!(tokio::join!(first, second), (Ok(1), Ok(2)));
    let (queued, ()) = tokio::join!(create(&store), store.close());
    assert_eq!(queued, Ok(3));
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::Stopped)));
    assert_eq!(visible(&store), [1, 2, 3], "reads continue");
    drop(store);
    assert_eq!(Arc::strong_count(&log), 1, "a closed store has let go of its log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_panicked_fails_liveness() {
    let store = Arc::new(alone(&FaultyLog::with(LogFault::AppendsPanic)).await);
    let address = serve_node(store.clone()).await;
    let ask = move || Call::new(address, "GET", "/livez").send();
    assert_eq!(task::spawn_blocking(ask).await.unwrap().status, 200);
    assert!(create(&store).await.is_err());
    eventually_ok("the fault is noticed", async || {
        let fault = store.health().not_ready().map(|error| error.fault);
        if fault == Some(Fault::Stopped) { Ok(()) } else { Err(fault) }
    })
    .await;
    let stopped = task::spawn_blocking(ask).await.unwrap();
    let reason = r#"{"status":"stopped","reason":"an internal component stopped"}"#;
    assert_eq!((stopped.status, stopped.text()), (503, reason));
}
