//! A log that is another one than before: restored to an earlier state, emptied, or replaced.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

use adapters::{read_model::MemoryReadModel, system::SystemClock};
use application::{
    Bookmark, HASH_PREFIX, ListPets, LogAccess, NotCaughtUp, Options, PageEnd, PetStore, PetView, Version,
    WriteError,
    commit::CommitView,
    contract,
    ports::{Fault, ReadModel},
};
use domain::PetId;
use harness::{FaultyLog, LogFault, open_node};

use super::{after_a_while, alone, create, fault, shared, visible};

#[tokio::test(start_paused = true)]
async fn a_log_that_was_restored_unnoticed_is_replayed_and_written_to() {
    for commits in [1, 2, 3, 4, 7] {
        let log = begun().await;
        let store = shared(&log).await;
        for id in 2..=3 {
            assert_eq!(create(&store).await, Ok(id));
        }
        log.is_restored_with(commits).await;
        after_a_while().await;
        let expected: Vec<_> = (1..=commits).map(|number| format!("pet {number}")).collect();
        assert_eq!(visible(&store), expected, "restored with {commits}");
        assert_eq!(create(&store).await, Ok(i64::try_from(commits).unwrap() + 1), "restored with {commits}");
        assert_eq!(fault(&store), None, "restored with {commits}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_of_a_history_that_is_gone_is_not_believed() {
    let log = begun().await;
    let store = shared(&log).await;
    for id in 2..=4 {
        assert_eq!(create(&store).await, Ok(id));
    }
    let gone = store.bookmark();
    log.is_restored_with(7).await;
    after_a_while().await;
    let patience = Duration::from_secs(1);
    assert_eq!(store.caught_up(store.bookmark(), patience).await, Ok(()));
    assert_eq!(store.caught_up(gone, patience).await, Err(NotCaughtUp));
    assert_eq!(store.caught_up(gone.position, patience).await, Ok(()), "a bare position fits every history");
}

/// So many commits that a node no longer knows the first ones by their hashes, and asks the log.
#[tokio::test(start_paused = true)]
async fn a_bookmark_from_long_ago_is_compared_with_the_log() {
    let log = Arc::<FaultyLog>::default();
    let store = alone(&log).await;
    let start = store.bookmark();
    create(&store).await.unwrap();
    let first = store.bookmark();
    let other = Bookmark { hash: Some([7; HASH_PREFIX]), ..first };
    for _ in 0..4_096 {
        create(&store).await.unwrap();
    }
    let patience = Duration::from_secs(1);
    for bookmark in [start, first, first.position.into()] {
        assert_eq!(store.caught_up(bookmark, patience).await, Ok(()), "{bookmark:?}");
    }
    assert_eq!(store.caught_up(other, patience).await, Err(NotCaughtUp));
    log.fails_with(LogFault::Disconnected);
    assert_eq!(store.caught_up(first, patience).await, Err(NotCaughtUp), "nobody can tell");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_taken_before_a_replaced_log_is_replayed_or_not_at_all() {
    let log = begun().await;
    let read_model = Arc::<Interrupted>::default();
    let options = Options::new(LogAccess::Shared);
    let store =
        PetStore::open(log.clone(), read_model.clone(), Arc::new(SystemClock), options).await.unwrap();
    for id in 2..=3 {
        assert_eq!(create(&store).await, Ok(id));
    }
    *read_model.reading.lock().unwrap() = Reading::Awaited;
    let store = Arc::new(store);
    let listing = tokio::task::spawn_blocking({
        let store = store.clone();
        move || visible(&store)
    });
    while *read_model.reading.lock().unwrap() == Reading::Awaited {
        tokio::task::yield_now().await;
    }
    log.is_restored_with(2).await;
    assert_eq!(listing.await.unwrap(), ["pet 1", "Rex", "Rex"]);
}

/// A read model that is asked for a page, and takes its time to find out whether it is cleared meanwhile.
#[derive(Default)]
struct Interrupted {
    model: MemoryReadModel,
    reading: Mutex<Reading>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Reading {
    #[default]
    Idle,
    Awaited,
    Begun,
    Interrupted,
}

impl Interrupted {
    /// More than a node takes to notice that its log was replaced.
    const PATIENCE: Duration = Duration::from_secs(3);

    fn wait_while(&self, reading: MutexGuard<Reading>, state: &Reading) {
        drop(self.changed.wait_timeout_while(reading, Self::PATIENCE, |now| now == state).unwrap());
    }
}

impl ReadModel for Interrupted {
    fn list(&self, query: &ListPets, sink: &mut dyn FnMut(PetView<'_>)) -> PageEnd {
        let mut reading = self.reading.lock().unwrap();
        if *reading == Reading::Awaited {
            *reading = Reading::Begun;
            self.wait_while(reading, &Reading::Begun);
        }
        let page = self.model.list(query, sink);
        *self.reading.lock().unwrap() = Reading::Idle;
        self.changed.notify_all();
        page
    }

    fn clear(&self) {
        self.model.clear();
        let mut reading = self.reading.lock().unwrap();
        if *reading == Reading::Begun {
            *reading = Reading::Interrupted;
            self.changed.notify_all();
            self.wait_while(reading, &Reading::Interrupted);
        }
    }

    fn apply(&self, commit: &CommitView<'_>) {
        self.model.apply(commit);
    }

    fn get(&self, id: PetId, sink: &mut dyn FnMut(PetView<'_>)) -> Version {
        self.model.get(id, sink)
    }

    fn version(&self) -> Version {
        self.model.version()
    }

    fn count(&self) -> usize {
        self.model.count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_emptied_or_replaced_is_refused_and_nothing_is_forgotten() {
    for (commits, access) in [
        (0, LogAccess::Shared),
        (1, LogAccess::Shared),
        (3, LogAccess::Shared),
        (7, LogAccess::Shared),
        (0, LogAccess::Exclusive),
        (3, LogAccess::Exclusive),
    ] {
        let log = begun().await;
        let store = open_node(log.clone(), access).await;
        assert_eq!(create(&store).await, Ok(2));
        let held = log.records().await;
        log.is_replaced(&[], commits).await;
        after_a_while().await;
        for _ in 0..3 {
            let refused = create(&store).await;
            assert!(matches!(refused, Err(WriteError::Unavailable(_))), "{commits}, {access:?}: {refused:?}");
            after_a_while().await;
        }
        assert_eq!(fault(&store), Some(Fault::AnotherLog), "{commits}, {access:?}");
        assert_eq!(visible(&store), ["pet 1", "Rex"], "{commits}, {access:?}");
        assert_eq!(log.commits().await, commits, "nothing was stored there");
        log.is_replaced(&held, 0).await;
        after_a_while().await;
        assert_eq!((create(&store).await, fault(&store)), (Ok(3), None), "{commits}, {access:?}");
    }
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
    // Nobody follows.
    let store = alone(&log).await;
    for id in 2..=3 {
        assert_eq!(create(&store).await, Ok(id));
    }
    log.is_restored_with(1).await;
    assert_eq!(create(&store).await, Err(WriteError::Unavailable(Fault::Diverged)));
    after_a_while().await;
    assert_eq!(create(&store).await, Ok(2));
    assert_eq!(visible(&store), ["pet 1", "Rex"]);
}
