//! Which directories are opened, which are rejected, and who may read them.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use super::*;
use crate::event_log::embedded::ReadOnlyLog;

#[test]
fn anything_but_a_directory_is_rejected_with_a_message() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "something").unwrap();
    for (path, words) in [(file.clone(), "is not a directory"), (file.join("below"), "cannot be written to")]
    {
        let rejected = SledLog::open(&path).unwrap_err();
        assert_eq!(rejected.fault, Fault::CannotOpen, "{}", path.display());
        assert!(rejected.detail.contains(words), "{rejected}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "something");
}

/// Otherwise the advice to remove a link would lead to a sound store.
#[test]
fn a_link_in_the_place_of_the_lock_is_named() {
    let directory = TempDir::new().unwrap();
    symlink(directory.path(), directory.path().join("lock")).unwrap();
    let rejected = SledLog::open(directory.path()).unwrap_err();
    assert!(rejected.detail.contains("/lock: it is a symbolic link"), "{rejected}");
}

#[test]
fn tools_do_not_create_a_missing_store() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("typo");
    let rejected = ReadOnlyLog::open::<Sled>(&path).err().unwrap();
    assert!(rejected.detail.contains("no store at "), "{rejected}");
    assert!(!path.exists());
    assert!(ReadOnlyLog::open::<Sled>(directory.path()).is_err(), "an empty directory is no store");
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[tokio::test]
async fn only_the_owner_can_read_the_directory() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("data").join("log");
    for _ in 0..2 {
        let log = SledLog::open(&path).unwrap();
        let head = log.head().await.unwrap().0;
        append_up_to(&log, head + 2).await;
        log.close().await;
    }
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for directory in [path.parent().unwrap(), &path, &path.join("sled")] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    for directory in [&path, &path.join("sled")] {
        for entry in directory.read_dir().unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                assert_eq!(mode(&entry.path()), 0o600, "{}", entry.path().display());
            }
        }
    }
}

#[test]
fn ballast_takes_real_space() {
    let directory = TempDir::new().unwrap();
    drop(SledLog::open(directory.path()).unwrap());
    let ballast = directory.path().join("ballast").metadata().unwrap();
    assert!(ballast.blocks() * 512 >= ballast.len(), "a hole would free nothing");
}
