//! Real system faults while a log is open.

use std::{env, fs, process::Command};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

/// Names the store, and asks for the test itself.
const STORE: &str = "TEST_STORE";

/// A limit on file sizes makes real writes fail, and lifting it makes them work again, but it holds for a whole process:
/// the test runs itself again in a separate process.
pub(crate) async fn a_failed_write_closes_the_log_until_it_reopens_by_itself<E: Engine>() {
    if let Some(store) = env::var_os(STORE) {
        return fail_and_recover::<E>(Path::new(&store)).await;
    }
    let directory = TempDir::new().unwrap();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", &test])
        .env(STORE, store::<E>(&directory))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && printed.contains("1 passed"), "{test}: {printed}");
}

async fn fail_and_recover<E: Engine>(store: &Path) {
    let log = EmbeddedLog::<E>::open(store).unwrap();
    let mut head = append_up_to(&log, 5).await;
    let limit = getrlimit(Resource::Fsize);
    let files = E::files(&E::layout(store)).unwrap();
    let longest = files.iter().map(|file| fs::metadata(file).unwrap().len()).max().unwrap();
    setrlimit(Resource::Fsize, Rlimit { current: Some(longest + 10_000), ..limit }).unwrap();

    let closed = loop {
        let next = record(head.position.0 + 1);
        match log.append(head, &next).await {
            Ok(position) => head = Version::at(position, next.id),
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
    let after = reopened(&log).await;
    let before = head.position;
    assert!(after == before || after == before.next(), "nothing is lost: {after} after {before}");
    append_up_to(&log, after.0 + 20).await;
    log.close().await;
    let log = EmbeddedLog::<E>::open(store).unwrap();
    assert_eq!(read_all(&log).await.unwrap().len() as u64, after.0 + 20);
}

pub(crate) async fn a_log_whose_files_are_gone_is_closed_permanently<E: Engine>() {
    lose::<E>("the directory is deleted", |layout| fs::remove_dir_all(&layout.directory).unwrap()).await;
    lose::<E>("the mark is deleted", |layout| fs::remove_file(&layout.mark).unwrap()).await;
    let moved =
        |layout: &Layout| fs::rename(&layout.directory, layout.directory.with_extension("old")).unwrap();
    lose::<E>("the directory is moved", moved).await;
    for index in 0..E::record_files(&E::layout(Path::new("any"))).len() {
        let file = |layout: &Layout| E::record_files(layout).swap_remove(index);
        lose::<E>("a file is deleted", |layout| fs::remove_file(file(layout)).unwrap()).await;
        let replaced = |layout: &Layout| {
            let copy = layout.directory.join("copy");
            fs::copy(file(layout), &copy).and_then(|_| fs::rename(&copy, file(layout))).unwrap();
        };
        lose::<E>("a file is replaced by its copy", replaced).await;
    }
}

async fn lose<E: Engine>(what: &str, lose: impl Fn(&Layout)) {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let log = EmbeddedLog::<E>::open(&path).unwrap();
    let head = append_up_to(&log, 3).await;
    lose(&E::layout(&path));
    let rejected = log.append(head, &record(4)).await;
    let Err(AppendError::Closed(error)) = rejected else { panic!("{what}: {rejected:?}") };
    assert_eq!(error.fault, Fault::FilesMissing, "{what}: {error}");
    assert_eq!(log.head().await, Err(error.clone()), "{what}: a closed log says why");
    assert_eq!(log.append(head, &record(4)).await, Err(AppendError::Closed(error)), "{what}, again");
}
