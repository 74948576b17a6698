//! The rules that every log on an embedded engine must follow. Each engine runs all of these tests: [`check_engine!`].

mod faults;
mod panics;

use std::path::{Path, PathBuf};

use application::log::contract::{self, record};
use tempfile::TempDir;

use super::*;

pub(crate) use faults::*;
pub(crate) use panics::*;

/// Runs every test on an engine.
macro_rules! check_engine {
    ($engine:ty) => {
        $crate::event_log::embedded::tests::run_on! { $engine:
            the_log_meets_the_contract,
            a_reopened_log_holds_everything,
            a_store_in_use_cannot_be_opened_until_it_is_closed,
            a_log_that_is_dropped_releases_its_store,
            a_store_that_an_earlier_process_left_in_doubt_is_compared_with_the_disk_and_opens,
            a_log_whose_files_are_gone_is_closed_permanently,
            an_engine_that_panics_while_it_writes_closes_the_log_which_is_then_opened_again,
            an_engine_that_panics_while_it_reads_makes_that_read_fail_and_no_other,
            a_thread_that_cannot_continue_stops_the_log_permanently,
        }
    };
}
pub(crate) use check_engine;

macro_rules! run_on {
    ($engine:ty: $($test:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            $crate::event_log::embedded::tests::$test::<$engine>().await;
        }
    )*};
}
pub(crate) use run_on;

/// A store of this engine that has the directory to itself.
fn store<E: Engine>(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("deep").join("store");
    // An engine that keeps its store in a file puts other files next to it.
    if E::layout(&path).directory == path { path } else { path.join("pets.db") }
}

/// Appends until the log holds so many commits, and returns where it ends.
pub(crate) async fn append_up_to<E: Engine>(log: &EmbeddedLog<E>, commits: u64) -> Version {
    let head = contract::version(log).await;
    contract::fill(log, head, commits - head.position.0).await
}

/// Creates a store with so many commits, and closes it.
pub(crate) async fn store_with<E: Engine>(path: &Path, commits: u64) {
    let log = EmbeddedLog::<E>::open(path).unwrap();
    append_up_to(&log, commits).await;
    log.close().await;
}

/// Everything in the log, or the first error.
pub(crate) async fn read_all<E: Engine>(log: &EmbeddedLog<E>) -> Result<Vec<StoredRecord>, LogError> {
    let mut all: Vec<StoredRecord> = Vec::new();
    loop {
        let last = all.last().map_or(Position::START, |record| record.position);
        let more = log.read(last, ReadBound { records: 50, bytes: 100_000 }).await?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

pub(crate) async fn the_log_meets_the_contract<E: Engine>() {
    let directory = TempDir::new().unwrap();
    let fresh = async || {
        let path = tempfile::tempdir_in(&directory).unwrap().keep().join("store");
        Arc::new(EmbeddedLog::<E>::open(path).unwrap()) as Arc<dyn EventLog>
    };
    contract::check_all(fresh).await;
}

pub(crate) async fn a_reopened_log_holds_everything<E: Engine>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let open = async || Arc::new(EmbeddedLog::<E>::open(&path).unwrap()) as Arc<dyn EventLog>;
    contract::a_reopened_log_holds_everything(open).await;
}

pub(crate) async fn a_store_in_use_cannot_be_opened_until_it_is_closed<E: Engine>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let first = EmbeddedLog::<E>::open(&path).unwrap();
    let rejected = EmbeddedLog::<E>::open(&path).unwrap_err();
    assert_eq!(rejected.fault, Fault::CannotOpen);
    assert!(rejected.detail.contains("in use by another process"), "{rejected}");
    let head = append_up_to(&first, 3).await;
    first.close().await;
    let again = EmbeddedLog::<E>::open(&path).unwrap();
    assert_eq!(again.head().await, Ok(Position(3)), "the rejected start has changed nothing");

    let stopped = first.append(head, &[record(4)]).await.unwrap_err();
    assert!(matches!(&stopped, AppendError::Closed(error) if error.fault == Fault::Stopped), "{stopped:?}");
    assert_eq!(first.head().await.unwrap_err().fault, Fault::Stopped);
    assert_eq!(first.read(Position::START, ReadBound::ONE).await.unwrap_err().fault, Fault::Stopped);
}

pub(crate) async fn a_log_that_is_dropped_releases_its_store<E: Engine>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let log = EmbeddedLog::<E>::open(&path).unwrap();
    let ended = log.ended.clone();
    append_up_to(&log, 3).await;
    drop(log);
    ended.cancelled().await;
    assert_eq!(EmbeddedLog::<E>::open(&path).unwrap().head().await, Ok(Position(3)));
}

pub(crate) async fn a_store_that_an_earlier_process_left_in_doubt_is_compared_with_the_disk_and_opens<
    E: Engine,
>() {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    store_with::<E>(&path, 50).await;
    let marker = E::layout(&path).not_synced;
    std::fs::write(&marker, "in doubt").unwrap();
    let log = EmbeddedLog::<E>::open(&path).unwrap();
    assert_eq!(log.head().await, Ok(Position(50)));
    assert!(!marker.exists(), "the doubt is settled");
}

/// Waits until the log takes records again.
async fn reopened<E: Engine>(log: &EmbeddedLog<E>) -> Position {
    /// Longer than a sound log needs to be open again, even on a busy machine.
    const TIMEOUT: Duration = Duration::from_mins(1);
    let opened = async {
        loop {
            match log.head().await {
                Ok(head) => return head,
                // This only lets some time pass.
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    time::timeout(TIMEOUT, opened).await.expect("the log is reopened automatically")
}
