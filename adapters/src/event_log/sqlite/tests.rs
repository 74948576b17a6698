//! Tests that are specific to SQLite: its files, its settings, and the effects of damage.

use std::{fs, os::unix::fs::PermissionsExt as _};

use application::{
    log::contract,
    ports::{Fault, LogSource as _, ReadBound},
};
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::event_log::embedded::{
    ReadOnlyLog,
    tests::{append_up_to, store_with},
};

mod any_embedded_engine {
    crate::event_log::embedded::tests::check_engine!(super::Sqlite);
}

fn directory() -> (TempDir, std::path::PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("deep").join("pets.db");
    (directory, path)
}

#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    let (_directory, path) = directory();
    let log = SqliteLog::open(&path).unwrap();
    append_up_to(&log, 1).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let files: Vec<_> =
        fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{file:?}");
    }
}

/// Takes something away from the log at a path.
type Loss = fn(&Path);

#[tokio::test]
async fn a_log_that_has_lost_commits_or_its_mark_is_rejected_and_left_unchanged() {
    let losses: [(Loss, &str); 4] = [
        (|path| fs::write(path, "").unwrap(), ""),
        (|path| fs::remove_file(path).unwrap(), "ends at position 0, but commits up to 3"),
        (|path| fs::remove_file(path.with_extension("db.mark")).unwrap(), "mark"),
        (|path| delete(path, "position = 3"), "ends at position 2, but commits up to 3"),
    ];
    for (lose, words) in losses {
        let (_directory, path) = directory();
        store_with::<Sqlite>(&path, 3).await;
        lose(&path);
        let before = fs::read(&path).ok();
        let rejected = SqliteLog::open(&path).unwrap_err();
        assert_eq!(rejected.fault, Fault::Damaged, "{rejected}");
        assert!(rejected.detail.contains(words), "{rejected}");
        assert!(fs::read(&path).ok() == before, "{words}: it is left as it is, and not created again");
    }
}

/// Deletes commits behind the log's back.
fn delete(path: &Path, commits: &str) {
    Connection::open(path).unwrap().execute(&format!("DELETE FROM commits WHERE {commits}"), []).unwrap();
}

#[tokio::test]
async fn a_log_whose_database_was_emptied_after_a_crash_keeps_its_write_ahead_log() {
    let (directory, path) = directory();
    let log = SqliteLog::open(&path).unwrap();
    append_up_to(&log, 3).await;
    let path = as_after_a_crash(&path, &directory.path().join("crashed"));
    fs::write(&path, "").unwrap();
    let waiting = fs::read(path.with_extension("db-wal")).unwrap();
    assert_eq!(SqliteLog::open(&path).unwrap_err().fault, Fault::Damaged);
    fs::remove_file(path.with_extension("db.mark")).unwrap();
    assert_eq!(SqliteLog::open(&path).unwrap_err().fault, Fault::Damaged);
    assert!(fs::read(path.with_extension("db-wal")).unwrap() == waiting, "it is left as it is");
}

#[tokio::test]
async fn files_that_are_not_a_log_are_rejected_and_left_unchanged() {
    let (_directory, path) = directory();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "a diary, not a database").unwrap();
    let rejected = SqliteLog::open(&path).unwrap_err();
    assert!(rejected.detail.contains("not a petstore log"), "{rejected}");
    assert_eq!(fs::read(&path).unwrap(), b"a diary, not a database");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left next to it");

    fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE diary (day TEXT)").unwrap();
    let rejected = SqliteLog::open(&path).unwrap_err();
    assert_eq!(rejected.fault, Fault::CannotOpen);
    assert!(rejected.detail.contains("not a petstore log"), "{rejected}");

    assert!(SqliteLog::open(path.parent().unwrap()).unwrap_err().detail.contains("not a file"));
    let nothing = path.with_extension("nothing");
    assert!(ReadOnlyLog::open::<Sqlite>(&nothing).err().unwrap().detail.contains("no store at"));
    assert!(!nothing.exists());
}

#[tokio::test]
async fn a_log_of_a_newer_version_is_rejected() {
    let (_directory, path) = directory();
    store_with::<Sqlite>(&path, 1).await;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    let rejected = SqliteLog::open(&path).unwrap_err();
    assert_eq!(rejected.fault, Fault::UnsupportedFormat);
    assert!(rejected.detail.contains("version 2"), "{rejected}");
}

#[tokio::test]
async fn rows_that_a_damaged_page_hides_are_missing_and_not_the_end() {
    let (_directory, path) = directory();
    store_with::<Sqlite>(&path, 3).await;
    let log = SqliteLog::open(&path).unwrap();
    delete(&path, "position > 1");
    let damaged = log.read(Position(1), ReadBound::BATCH).await.unwrap_err();
    assert!(damaged.detail.contains("position 2"), "{damaged}");
    assert_eq!(log.read(Position(3), ReadBound::BATCH).await.unwrap(), []);
}

#[tokio::test]
async fn a_missing_row_is_damage() {
    let (_directory, path) = directory();
    store_with::<Sqlite>(&path, 3).await;
    delete(&path, "position = 2");
    let log = SqliteLog::open(&path).unwrap();
    let damaged = log.read(Position(1), ReadBound::BATCH).await.unwrap_err();
    assert_eq!(damaged.fault, Fault::Damaged);
    assert!(damaged.detail.contains("position 2"), "{damaged}");
}

/// The files as they would be found if the process ended right now.
fn as_after_a_crash(path: &Path, into: &Path) -> std::path::PathBuf {
    fs::create_dir(into).unwrap();
    for file in fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), into.join(file.file_name())).unwrap();
    }
    into.join(path.file_name().unwrap())
}

#[tokio::test]
async fn the_write_ahead_log_is_moved_into_the_database_while_the_log_is_in_use() {
    const RECORD: usize = 600 * 1024;
    let (_directory, path) = directory();
    let log = SqliteLog::open(&path).unwrap();
    let large = || Record { id: contract::record(1).id, bytes: vec![b'x'; RECORD].into() };
    contract::append_all(&log, (0..20).map(|_| large())).await;
    // Closing the log would move everything, so the files are measured while it is open. A record is acknowledged before
    // the checkpoint that follows it, so the last two may still wait.
    let length = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(length(&path) >= 18 * RECORD as u64, "the database holds {} bytes", length(&path));
    let waiting = path.with_extension("db-wal");
    assert!(length(&waiting) < 5 * RECORD as u64, "the write-ahead log holds {} bytes", length(&waiting));
}

#[tokio::test]
async fn the_reported_durability_matches_the_settings_in_use() {
    let (_directory, path) = directory();
    let durability = SqliteLog::open(&path).unwrap().durability();
    assert_eq!(durability.level, application::ports::DurabilityLevel::Synced);
    for fact in [("journal_mode", "wal"), ("synchronous", "FULL")] {
        assert!(durability.settings.contains(&(fact.0.into(), fact.1.into())), "{durability:?}");
    }
}
