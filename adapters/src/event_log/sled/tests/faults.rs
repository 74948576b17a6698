//! Real faults of the system under an open log.

use std::{env, fs, process::Command, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::timeout;

use super::*;

/// Longer than a sound log needs to be open again, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A limit on file sizes makes real writes fail, and lifting it makes them work again, but it holds for a
/// whole process: the test runs itself again in a process of its own.
#[test]
fn a_failed_write_closes_the_log_until_it_was_opened_again_by_itself() {
    const STORE: &str = "PETSTORE_TEST_STORE";
    if let Some(store) = env::var_os(STORE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(fail_and_recover(Path::new(&store)));
    }
    let folder = TempDir::new().unwrap();
    let name =
        "event_log::sled::tests::faults::a_failed_write_closes_the_log_until_it_was_opened_again_by_itself";
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(STORE, folder.path().join("store"))
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

async fn fail_and_recover(store: &Path) {
    let log = SledLog::open(store).unwrap();
    let mut head = append_up_to(&log, 5).await;
    let limit = getrlimit(Resource::Fsize);
    let written = fs::metadata(store.join("sled").join("db")).unwrap().len();
    setrlimit(Resource::Fsize, Rlimit { current: Some(written + 10_000), ..limit }).unwrap();

    let closed = loop {
        let record = record(head.position.0 + 1);
        match log.append(head, &record).await {
            Ok(position) => head = Version::at(position, record.id),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&closed, AppendError::Closed(error) if error.fault == Fault::WriteFailed),
        "a failed write closes the log: {closed:?}"
    );
    assert!(log.head().await.is_err(), "a closed log says so");
    assert!(
        matches!(log.append(head, &record(head.position.0 + 1)).await, Err(AppendError::Closed(_))),
        "a closed log takes nothing"
    );
    if let Ok(read) = read_all(&log).await {
        assert_eq!(read.len() as u64, head.position.0, "readers see what is durable and nothing else");
    }

    setrlimit(Resource::Fsize, limit).unwrap();
    let recovered = async {
        while log.head().await.is_err() {
            // Nothing can come meanwhile: this only lets some time pass.
            log.wait_beyond(Position(u64::MAX), Duration::from_millis(20)).await.unwrap();
        }
    };
    timeout(PATIENCE, recovered).await.expect("the log is opened again by itself");
    let reopened = log.head().await.unwrap();
    let last = head.position;
    assert!(reopened == last || reopened == last.next(), "nothing is lost: {reopened} after {last}");
    append_up_to(&log, reopened.0 + 20).await;
    drop(log);
    let log = SledLog::open(store).unwrap();
    assert_eq!(read_all(&log).await.unwrap().len() as u64, reopened.0 + 20);
}

#[tokio::test]
async fn a_store_that_an_earlier_process_left_in_doubt_is_compared_with_the_disk_and_opens() {
    let folder = TempDir::new().unwrap();
    store_of(folder.path(), 50).await;
    let word = folder.path().join("not-synced");
    fs::write(&word, "in doubt").unwrap();
    let log = SledLog::open(folder.path()).unwrap();
    assert_eq!(log.head().await, Ok(Position(50)));
    assert!(!word.exists(), "the doubt is settled");
}
