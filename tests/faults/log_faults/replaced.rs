//! A log that is another one than before: restored to an earlier state, emptied, or replaced.

use std::{sync::Arc, time::Duration};

use adapters::{read_model::MemoryReadModel, system::SystemClock};
use application::{
    HASH_PREFIX, LogAccess, LogPosition, NotCaughtUp, Options, PetStore, Version, WriteError, log::contract,
    ports::Fault,
};
use harness::{FaultyLog, LogFault, open_node, owner};
use tokio::time::Instant;

use super::{after_a_while, alone, create, fault, shared, visible};

#[tokio::test(start_paused = true)]
async fn a_log_without_the_newest_commit_is_rejected_until_it_is_back() {
    for access in [LogAccess::Shared, LogAccess::Exclusive] {
        // A log with the same first commit, as after a restore, and a log without it.
        for (kept, commits) in [(1, 1), (1, 2), (1, 3), (1, 4), (1, 7), (0, 0), (0, 1), (0, 3), (0, 7)] {
            let case = format!("{commits} commits, {kept} of them kept, {access:?}");
            let log = begun().await;
            let store = open_node(log.clone(), access).await;
            for id in 2..=3 {
                assert_eq!(create(&store).await, Ok(id));
            }
            let (held, known) = (log.records().await, store.identity());
            log.is_replaced(&held[..kept], commits - kept as u64).await;
            after_a_while().await;
            for _ in 0..3 {
                assert!(matches!(create(&store).await, Err(WriteError::Unavailable(_))), "{case}");
                after_a_while().await;
            }
            assert_eq!(fault(&store), Some(Fault::AnotherLog), "{case}");
            assert!(store.health().not_ready_for_reads().is_some(), "{case}");
            assert_eq!(store.identity(), known, "{case}: the node never goes back");
            assert_eq!(visible(&store), ["pet 1", "Rex", "Rex"], "{case}: reads continue");
            assert_eq!(log.commits().await, commits, "{case}: nothing is stored");
            log.is_replaced(&held, 0).await;
            after_a_while().await;
            assert_eq!((create(&store).await, fault(&store)), (Ok(4), None), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_rejects_a_log_that_does_not_hold_the_recorded_version() {
    let log = begun().await;
    let store = shared(&log).await;
    for id in 2..=3 {
        assert_eq!(create(&store).await, Ok(id));
    }
    let known = store.identity();
    store.close().await;
    let open = async || {
        let options = Options { known, ..Options::new(LogAccess::Shared) };
        PetStore::open(log.clone(), Box::<MemoryReadModel>::default(), Arc::new(SystemClock), options).await
    };
    let held = log.records().await;
    for commits in [1, 2, 3, 4, 7] {
        log.is_replaced(&held[..1], commits - 1).await;
        let rejected = open().await.err().expect("it lacks the recorded version");
        assert_eq!(rejected.fault, Fault::AnotherLog, "{rejected}");
    }
    log.is_replaced(&[], 0).await;
    assert!(open().await.is_err_and(|rejected| rejected.detail.contains("the log is empty")));
    log.is_replaced(&held, 2).await;
    assert!(open().await.is_ok(), "a longer log holds it");
}

#[tokio::test(start_paused = true)]
async fn a_log_that_returns_one_record_per_read_is_followed_until_it_is_another_one() {
    let log = begun().await;
    let store = shared(&log).await;
    log.fails_with(LogFault::ReadsOneRecord);
    let head = contract::fill(&*log, contract::version(&*log).await, 2).await;
    after_a_while().await;
    assert_eq!(visible(&store), ["pet 1", "pet 2", "pet 3"]);
    let mut changes = store.health_changes();
    log.fails_with(LogFault::ReplacedBetweenReads);
    contract::fill(&*log, head, 1).await;
    changes.changed().await.unwrap();
    assert_eq!(fault(&store), Some(Fault::AnotherLog));
    // The fourth record was read before the log was replaced.
    assert_eq!(visible(&store), ["pet 1", "pet 2", "pet 3", "pet 4"]);
}

/// So many commits that a node no longer knows the first ones by their hashes, and asks the log.
#[tokio::test(start_paused = true)]
async fn a_position_from_long_ago_is_compared_with_the_log() {
    let log = Arc::<FaultyLog>::default();
    let store = alone(&log).await;
    let start = store.log_position();
    create(&store).await.unwrap();
    let first = store.log_position();
    let other = LogPosition { hash: Some([7; HASH_PREFIX]), ..first };
    for _ in 0..4_096 {
        create(&store).await.unwrap();
    }
    let timeout = Duration::from_secs(1);
    for position in [start, first, first.position.into()] {
        assert_eq!(store.caught_up(position, &owner(), timeout).await, Ok(()), "{position:?}");
    }
    let recent = LogPosition { hash: other.hash, ..store.log_position() };
    let begun = Instant::now();
    for position in [other, recent] {
        assert_eq!(store.caught_up(position, &owner(), timeout).await, Err(NotCaughtUp), "{position:?}");
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "a node never goes back, so there is nothing to wait for");
    log.fails_with(LogFault::Disconnected);
    assert_eq!(store.caught_up(first, &owner(), timeout).await, Err(NotCaughtUp), "it cannot be compared");
}

/// A log with one commit.
async fn begun() -> Arc<FaultyLog> {
    let log = Arc::<FaultyLog>::default();
    contract::fill(&*log, Version::START, 1).await;
    log
}

#[tokio::test(start_paused = true)]
async fn a_writer_notices_by_itself_that_its_log_has_become_shorter() {
    let log = begun().await;
    // This node has no follower.
    let store = alone(&log).await;
    for id in 2..=3 {
        assert_eq!(create(&store).await, Ok(id));
    }
    log.is_replaced(&log.records().await[..1], 0).await;
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::AnotherLog)));
    after_a_while().await;
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::AnotherLog)));
    assert!(store.health().not_ready_for_reads().is_some());
    assert_eq!(visible(&store), ["pet 1", "Rex", "Rex"]);
}
