//! Whatever happens to the files, a shorter or different history is never served silently.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::*;

#[tokio::test]
async fn a_log_that_ends_before_its_mark_is_rejected() {
    let directory = TempDir::new().unwrap();
    let (short, long) = (directory.path().join("short"), directory.path().join("long"));
    store_of(&short, 5).await;
    copy(&short, &long);
    store_of(&long, 7).await;
    fs::copy(long.join("mark"), short.join("mark")).unwrap();
    let rejected = SledLog::open(&short).unwrap_err();
    assert_eq!(rejected.fault, Fault::Damaged);
    assert!(rejected.detail.contains("ends at position 5, but commits up to 7"), "{rejected}");
    assert!(SledLog::open(&long).is_ok(), "the other store is as it was");
}

#[tokio::test]
async fn a_log_ahead_of_its_mark_is_fine() {
    let directory = TempDir::new().unwrap();
    store_of(directory.path(), 5).await;
    let kept = fs::read(directory.path().join("mark")).unwrap();
    store_of(directory.path(), 8).await;
    fs::write(directory.path().join("mark"), kept).unwrap();
    let log = SledLog::open(directory.path()).unwrap();
    assert_eq!(log.head().await, Ok(Position(8)));
}

#[tokio::test]
async fn a_log_without_a_readable_mark_is_rejected_and_left_unchanged() {
    let directory = TempDir::new().unwrap();
    store_of(directory.path(), 5).await;
    let mark = directory.path().join("mark");
    for (damage, words) in [(None, "is missing"), (Some("both slots gone"), "damaged in both of its slots")] {
        let _ = fs::remove_file(&mark);
        if let Some(content) = damage {
            fs::write(&mark, content).unwrap();
        }
        let before = contents(directory.path());
        let rejected = SledLog::open(directory.path()).unwrap_err();
        assert!(rejected.detail.contains(words), "{rejected}");
        assert!(contents(directory.path()) == before, "{words}: a rejected store stays as it is");
    }
}

#[tokio::test]
async fn a_log_that_has_vanished_is_rejected_and_not_recreated() {
    let directory = TempDir::new().unwrap();
    store_of(directory.path(), 5).await;
    fs::remove_file(directory.path().join("sled").join("db")).unwrap();
    let before = contents(directory.path());
    let rejected = SledLog::open(directory.path()).unwrap_err();
    assert!(rejected.detail.contains("ends at position 0, but commits up to 5"), "{rejected}");
    assert!(contents(directory.path()) == before, "a rejected store stays as it is");
}

#[tokio::test]
async fn an_unfinished_snapshot_of_sled_does_no_harm() {
    let directory = TempDir::new().unwrap();
    store_of(directory.path(), 5).await;
    fs::write(directory.path().join("sled").join("snap.00000000000FFFFF.generating"), "half of").unwrap();
    let log = SledLog::open(directory.path()).unwrap();
    assert_eq!(log.head().await, Ok(Position(5)));
}

#[tokio::test]
async fn a_store_whose_creation_was_interrupted_opens() {
    let directory = TempDir::new().unwrap();
    store_of(directory.path(), 0).await;
    let sled = directory.path().join("sled");
    let settings = fs::read(sled.join("conf")).unwrap();
    fs::remove_dir_all(&sled).unwrap();
    fs::create_dir(&sled).unwrap();
    fs::write(sled.join("conf"), &settings[..settings.len() - 4]).unwrap();
    let log = SledLog::open(directory.path()).unwrap();
    assert_eq!(log.head().await, Ok(Position::START));
}

#[tokio::test]
async fn a_store_that_was_closed_is_not_taken_for_a_suspect_one() {
    let directory = TempDir::new().unwrap();
    let mut last = Version::START;
    for round in 0..3 {
        let log = SledLog::open(directory.path()).unwrap();
        for position in round * 50..round * 50 + 50 {
            // Large enough to fill several of sled's segments, and to have it use some of them again.
            let large = Record { bytes: vec![b'x'; 30_000].into(), ..record(position + 1) };
            last = Version::at(log.append(last, std::slice::from_ref(&large)).await.unwrap(), large.id);
        }
        log.close().await;
        let layout = Sled::layout(directory.path());
        assert_eq!(inspect::first_suspect_offset(&layout, last).unwrap(), None, "after round {round}");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.file_name() != "ballast" {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Every file below the directory with all its bytes, but for the ballast, which holds nothing.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in directory.read_dir().unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(contents(&entry.path()));
        } else if entry.file_name() != "ballast" {
            found.insert(entry.path(), fs::read(entry.path()).unwrap());
        }
    }
    found
}
