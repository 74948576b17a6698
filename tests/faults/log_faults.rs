//! What a node does while its log fails, one fault per test, without HTTP. The simulation combines faults.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use application::{
    CreatePet, LogAccess, NotCaughtUp, PetStore, RequestKey, Version, WriteError,
    log::contract,
    ports::{EventLog as _, Fault, LogSource as _, Position},
};
use harness::{FaultyLog, LogFault, all_pets, in_format, open_node, owner, pet_named};
use tokio::time::{self, Instant};

mod replaced;

async fn shared(log: &Arc<FaultyLog>) -> PetStore {
    open_node(log.clone(), LogAccess::Shared).await
}

pub(super) async fn alone(log: &Arc<FaultyLog>) -> PetStore {
    open_node(log.clone(), LogAccess::Exclusive).await
}

/// A node on an empty log that it shares, and the log.
async fn shared_node() -> (Arc<FaultyLog>, PetStore) {
    let log = Arc::<FaultyLog>::default();
    (log.clone(), shared(&log).await)
}

/// A node on an empty log that only it uses, and the log.
async fn lone_node() -> (Arc<FaultyLog>, PetStore) {
    let log = Arc::<FaultyLog>::default();
    (log.clone(), alone(&log).await)
}

pub(super) async fn create(store: &PetStore) -> Result<i64, WriteError> {
    harness::create(store, "Rex").await.map(|pet| pet.id.get())
}

/// The names that readers see.
fn visible(store: &PetStore) -> Vec<String> {
    all_pets(store).unwrap().iter().map(|pet| pet.details.name.as_str().into()).collect()
}

fn fault(store: &PetStore) -> Option<Fault> {
    store.health().not_ready().map(|error| error.fault)
}

/// Lets simulated time pass, more than enough for everything that is under way.
async fn after_a_while() {
    time::sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_briefly_unreachable_fails_no_request() {
    for log_fault in [LogFault::Away, LogFault::Disconnected] {
        let (log, store) = shared_node().await;
        log.fails_with(log_fault);
        let back_soon = async {
            time::sleep(Duration::from_secs(3)).await;
            log.fails_with(LogFault::None);
        };
        let (first, second, ()) = tokio::join!(create(&store), create(&store), back_soon);
        assert_eq!((first, second), (Ok(1), Ok(2)), "{log_fault:?}");
        after_a_while().await;
        assert_eq!(fault(&store), None, "{log_fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_log_stays_unreachable_every_create_is_rejected_at_once() {
    for log_fault in [LogFault::Away, LogFault::Disconnected] {
        let (log, store) = shared_node().await;
        log.fails_with(log_fault);
        let unreachable = Err(WriteError::Unavailable(Fault::Unreachable));
        assert_eq!(create(&store).await, unreachable, "{log_fault:?}");
        after_a_while().await;
        assert_eq!(fault(&store), Some(Fault::Unreachable), "{log_fault:?}");
        let asked = Instant::now();
        assert_eq!(create(&store).await, unreachable, "{log_fault:?}");
        assert_eq!(asked.elapsed(), Duration::ZERO, "{log_fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_notices_that_its_log_has_closed_and_that_it_is_open_again() {
    let (log, store) = lone_node().await;
    let mut changes = store.health_changes();
    after_a_while().await;
    assert!(!changes.has_changed().unwrap(), "nothing has happened");
    log.fails_with(LogFault::Disconnected);
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Unreachable), "without a write");
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    log.fails_with(LogFault::None);
    after_a_while().await;
    assert_eq!((fault(&store), changes.has_changed().unwrap()), (None, true));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_read_its_log_for_five_seconds_is_not_ready_for_reads() {
    let (log, store) = shared_node().await;
    log.fails_with(LogFault::Disconnected);
    time::sleep(Duration::from_secs(4)).await;
    assert_eq!(store.health().not_ready_for_reads(), None);
    time::sleep(Duration::from_secs(4)).await;
    let health = store.health();
    assert_eq!(health.not_ready_for_reads().map(|error| error.fault), Some(Fault::Unreachable));
}

#[tokio::test(start_paused = true)]
async fn a_stored_commit_makes_a_node_ready_that_cannot_read_the_head() {
    let (log, store) = shared_node().await;
    log.fails_with(LogFault::HeadFails(Fault::Unreachable));
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Unreachable));
    assert_eq!(create(&store).await, Ok(1));
    assert_eq!((store.statistics().unseen_for(), fault(&store)), (Duration::ZERO, None));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_long_after_its_callers_got_an_error() {
    let (log, store) = shared_node().await;
    log.fails_with(LogFault::LosesEveryAppend);
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::Unreachable)));
    after_a_while().await;
    log.fails_with(LogFault::None);
    after_a_while().await;
    assert_eq!(log.head().await, Ok(Position(0)));
    assert_eq!(create(&store).await, Ok(1), "and the writer is not stuck");
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_an_unreachable_log() {
    for (log_fault, access) in
        [(LogFault::Away, LogAccess::Shared), (LogFault::LosesEveryAppend, LogAccess::Exclusive)]
    {
        let log = Arc::<FaultyLog>::default();
        let store = open_node(log.clone(), access).await;
        log.fails_with(log_fault);
        let given_up = time::timeout(Duration::from_millis(100), create(&store)).await;
        assert!(given_up.is_err(), "{log_fault:?}: the request is in doubt");
        let closed = time::timeout(Duration::from_secs(10), store.close()).await;
        assert_eq!(closed, Ok(()), "{log_fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_that_hangs_is_reported_and_waited_for() {
    let (log, store) = lone_node().await;
    log.fails_with(LogFault::Slow);
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::Unreachable)));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fault(&store), Some(Fault::Unreachable));
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!(fault(&store), None);
    assert_eq!(visible(&store), ["Rex"], "what was stored in the end is shown");
}

#[tokio::test(start_paused = true)]
async fn writes_resume_after_a_slow_batch_without_a_commit() {
    let (log, store) = shared_node().await;
    let request_key = RequestKey::new("order-17").unwrap();
    let repeat = || store.create(CreatePet { request_key: Some(request_key.clone()), ..pet_named("Rex") });
    assert!(repeat().await.is_ok());
    // After a commit of another node, the next request begins with a read.
    contract::fill(&*log, contract::version(&*log).await, 1).await;
    after_a_while().await;
    log.fails_with(LogFault::SlowReads);
    assert_eq!(repeat().await, Err(WriteError::Unavailable(Fault::Unreachable)));
    log.fails_with(LogFault::None);
    for _ in 0..40 {
        time::sleep(Duration::from_millis(500)).await;
        let _may_still_be_slow = repeat().await;
    }
    assert_eq!(fault(&store), None, "while there are replays");
}

#[tokio::test(start_paused = true)]
async fn an_unclear_append_is_resolved_when_a_newer_program_wrote_at_its_position() {
    let (log, store) = lone_node().await;
    log.fails_with(LogFault::OvertakenByANewerProgram);
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::UnsupportedFormat)));
    assert_eq!(fault(&store), Some(Fault::UnsupportedFormat));
    assert_eq!(all_pets(&store), Err(Fault::UnsupportedFormat), "what it would show is no longer the truth");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_follows_a_newer_program_stops_serving_and_says_so() {
    let (log, store) = shared_node().await;
    assert_eq!(create(&store).await, Ok(1));
    log.append(contract::version(&*log).await, &[in_format(2, &contract::record(2))]).await.unwrap();
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::UnsupportedFormat));
    assert_eq!(all_pets(&store), Err(Fault::UnsupportedFormat), "what it would show is no longer the truth");
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::UnsupportedFormat)));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_rejects_every_commit_stops_writes_until_it_takes_one_again() {
    let (log, store) = shared_node().await;
    assert_eq!(create(&store).await, Ok(1));
    log.fails_with(LogFault::RejectsEveryAppend);
    let rejected = || Err(WriteError::Unavailable(Fault::WriteFailed));
    assert_eq!((create(&store).await, fault(&store)), (rejected(), None), "one rejection may be a chance");
    assert_eq!((create(&store).await, fault(&store)), (rejected(), Some(Fault::WriteFailed)));
    for _ in 0..100 {
        assert_eq!((create(&store).await, fault(&store)), (rejected(), Some(Fault::WriteFailed)));
        time::sleep(Duration::from_millis(100)).await;
    }
    log.fails_with(LogFault::ReportsConflicts);
    for _ in 0..100 {
        let _unanswered = time::timeout(Duration::from_millis(100), create(&store)).await;
        time::sleep(Duration::from_millis(100)).await;
        assert_eq!(fault(&store), Some(Fault::WriteFailed), "a conflict does not show that it takes commits");
    }
    log.fails_with(LogFault::None);
    after_a_while().await;
    assert_eq!(fault(&store), None, "without another write");
    assert_eq!(create(&store).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn writes_stay_stopped_while_probes_are_rejected() {
    let log = FaultyLog::with(LogFault::RejectsEveryAppendAndProbe);
    let store = shared(&log).await;
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::WriteFailed)));
    for _ in 0..40 {
        time::sleep(Duration::from_millis(250)).await;
        assert_eq!(fault(&store), Some(Fault::WriteFailed));
    }
    log.fails_with(LogFault::None);
    after_a_while().await;
    assert_eq!((fault(&store), create(&store).await), (None, Ok(1)));
    log.fails_with(LogFault::RejectsEveryAppendAndProbe);
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::WriteFailed)));
    log.fails_with(LogFault::Disconnected);
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Unreachable));
    log.fails_with(LogFault::None);
    time::sleep(Duration::from_millis(900)).await;
    assert_eq!(fault(&store), None, "an outage ends without the delay of a probe");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_to_a_log_that_was_found_damaged() {
    let (log, store) = shared_node().await;
    assert_eq!(create(&store).await, Ok(1));
    log.fails_with(LogFault::HeadFails(Fault::Damaged));
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Damaged));
    for _ in 0..3 {
        assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::Damaged)));
        after_a_while().await;
    }
    assert_eq!(log.commits().await, 1, "and nothing was stored either");
    assert_eq!(visible(&store), ["Rex"], "reads continue");
    log.fails_with(LogFault::None);
    after_a_while().await;
    assert_eq!((create(&store).await, fault(&store)), (Ok(2), None));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_a_response_unless_the_log_is_away_or_has_stopped() {
    for (fault, responds) in
        [(Fault::Full, true), (Fault::Damaged, true), (Fault::Unreachable, false), (Fault::Stopped, false)]
    {
        let (log, store) = shared_node().await;
        log.fails_with(LogFault::HeadFails(fault));
        after_a_while().await;
        let unseen = store.statistics().unseen_for();
        assert_eq!(unseen < Duration::from_secs(5), responds, "{fault:?}: {unseen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_writer_is_still_reported_when_the_log_is_back() {
    let (log, store) = shared_node().await;
    log.fails_with(LogFault::AppendsPanic);
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::Stopped)));
    log.fails_with(LogFault::Away);
    after_a_while().await;
    log.fails_with(LogFault::None);
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_follower_is_reported() {
    let (log, store) = shared_node().await;
    log.fails_with(LogFault::WaitsPanic);
    after_a_while().await;
    assert_eq!(fault(&store), Some(Fault::Stopped));
    assert!(store.health().needs_restart());
    assert_eq!(create(&store).await, Ok(1), "writes continue");
    assert_eq!(fault(&store), Some(Fault::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_position_that_the_log_cannot_hold_soon_is_not_waited_for() {
    let (_log, store) = lone_node().await;
    let begun = Instant::now();
    let waited = store.caught_up(Position(u64::MAX), &owner(), Duration::from_secs(1)).await;
    assert_eq!((waited, begun.elapsed()), (Err(NotCaughtUp), Duration::ZERO));
    let waited = store.caught_up(Position(1), &owner(), Duration::from_secs(1)).await;
    assert_eq!((waited, begun.elapsed()), (Err(NotCaughtUp), Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_later_commit_causes_no_reads() {
    let (log, store) = shared_node().await;
    let (owner, timeout) = (owner(), Duration::from_secs(1));
    let later = store.caught_up(Position(5_000), &owner, timeout);
    let appends = async {
        let (mut head, mut shown) = (Version::START, BTreeSet::new());
        for _ in 0..200 {
            head = contract::fill(&*log, head, 1).await;
            time::sleep(Duration::from_millis(1)).await;
            shown.insert(store.log_position().position);
        }
        shown.len()
    };
    let (waited, reads) = tokio::join!(later, appends);
    assert_eq!(waited, Err(NotCaughtUp));
    assert!(reads <= 15, "{reads} reads of 200 commits in 200 ms");
    let begun = Instant::now();
    let next = store.caught_up(Position(201), &owner, timeout);
    let (waited, _) = tokio::join!(next, contract::fill(&*log, contract::version(&*log).await, 1));
    assert_eq!(waited, Ok(()));
    assert!(
        begun.elapsed() < Duration::from_millis(20),
        "its own commit is read at once: {:?}",
        begun.elapsed()
    );
}
