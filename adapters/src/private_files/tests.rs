//! The program's own files are never opened through links, and are private.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use super::*;

/// Opens a file and closes it.
type Way = fn(&Path) -> io::Result<()>;

/// Every way to open a file of petstore.
const WAYS: [(&str, Way); 5] = [
    ("read", |path| read(path, 100).map(drop)),
    ("open", |path| open(path).map(drop)),
    ("open_or_create", |path| open_or_create(path).map(drop)),
    ("create_file", |path| create_file(path).map(drop)),
    ("lock", |path| lock(path, Duration::ZERO).map(drop)),
];

/// Makes the second path a link to the first.
type Link = fn(&Path, &Path) -> io::Result<()>;

const LINKS: [(Link, &str); 2] =
    [(|from, to| symlink(from, to), "symbolic link"), (|from, to| fs::hard_link(from, to), "hard link")];

/// A directory with a file that belongs to another user.
fn directory_with_foreign_file() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let foreign = directory.path().join("foreign");
    fs::write(&foreign, "precious").unwrap();
    (directory, foreign)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn no_way_to_open_our_own_file_accepts_a_link_to_another_one() {
    for (plant, words) in LINKS {
        for (way, open) in WAYS {
            let (directory, foreign) = directory_with_foreign_file();
            let own = directory.path().join("own");
            plant(&foreign, &own).unwrap();
            let error = open(&own).unwrap_err();
            assert!(error.to_string().contains(words), "{way}: {error}");
            assert_eq!(fs::read(&foreign).unwrap(), b"precious", "{way}");
        }
    }
}

#[test]
fn no_way_to_open_our_own_file_creates_the_target_of_a_dangling_link() {
    for (way, open) in WAYS {
        let directory = TempDir::new().unwrap();
        let own = directory.path().join("own");
        symlink(directory.path().join("elsewhere"), &own).unwrap();
        assert!(open(&own).is_err(), "{way}");
        assert!(!directory.path().join("elsewhere").exists(), "{way}");
    }
}

#[test]
fn a_pipe_in_place_of_a_file_is_rejected_at_once() {
    let directory = TempDir::new().unwrap();
    let pipe = directory.path().join("pipe");
    mkfifoat(CWD, &pipe, Mode::from_raw_mode(FILE_MODE)).unwrap();
    for (way, open) in WAYS {
        let error = open(&pipe).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{way}: {error}");
    }
    assert!(read_named(&pipe, 100).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn a_named_file_is_read_through_a_link() {
    let (directory, foreign) = directory_with_foreign_file();
    let link = directory.path().join("link");
    symlink(&foreign, &link).unwrap();
    assert_eq!(read_named(&link, 8).unwrap(), b"precious");
    assert_eq!(read_named(&link, 7).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}

#[test]
fn a_replacement_takes_the_place_of_a_link_and_leaves_its_target_alone() {
    for (plant, _) in LINKS {
        let (directory, foreign) = directory_with_foreign_file();
        let own = directory.path().join("own");
        for name in ["own", "own.new"] {
            plant(&foreign, &directory.path().join(name)).unwrap();
        }
        replace(&own, b"content").unwrap();
        assert_eq!(fs::read(&foreign).unwrap(), b"precious");
        assert_eq!(fs::read(&own).unwrap(), b"content");
        assert!(fs::symlink_metadata(&own).unwrap().is_file());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no draft is left");
    }
}

#[test]
fn a_replacement_that_fails_leaves_the_old_content_and_no_draft() {
    let (directory, file) = directory_with_foreign_file();
    let failed = replace_with(&file, |file| {
        file.write_all(b"half")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn only_the_owner_can_read_files_and_directories() {
    let directory = TempDir::new().unwrap();
    let below = directory.path().join("a/b");
    create_directories(&below).unwrap();
    create_file(&below.join("created")).unwrap();
    replace(&below.join("replaced"), b"").unwrap();
    assert_eq!([mode(&below), mode(below.parent().unwrap())], [DIRECTORY_MODE; 2]);
    assert_eq!([mode(&below.join("created")), mode(&below.join("replaced"))], [FILE_MODE; 2]);
}

#[test]
fn a_lock_is_held_until_it_is_dropped() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("lock");
    let held = lock(&path, Duration::ZERO).unwrap();
    assert_eq!(lock(&path, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock(&path, Duration::from_mins(1)));
        drop(held);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_created_file_starts_empty_and_an_opened_one_keeps_its_content() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("file");
    create_file(&path).unwrap().write_all(b"content").unwrap();
    open_or_create(&path).unwrap();
    open(&path).unwrap();
    assert_eq!(read(&path, 100).unwrap(), b"content");
    create_file(&path).unwrap();
    assert_eq!(read(&path, 100).unwrap(), b"");
}
