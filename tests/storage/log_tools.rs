//! The log commands that only look: they change nothing in a store, not even a time stamp, and work where nothing can be
//! written.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{App, Finished, PostgresServer, finished, petstore, program};
use serde_json::Value;
use tempfile::TempDir;

use crate::faults::crash::{disk, scenario::available};

const ENGINES: [&str; 2] = ["sled", "sqlite"];

/// How the service that wrote a store has ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Stopped,
    Killed,
}

/// A store at `log` in the directory.
fn store_in(directory: &Path, engine: &str, end: End) -> String {
    let store = format!("{engine}:{}", directory.join("log").display());
    let mut app = App::on(&store);
    for name in ["Rex", "Tom"] {
        app.add(name);
    }
    match end {
        End::Stopped => assert!(app.terminate().success()),
        End::Killed => app.kill(),
    }
    store
}

/// Runs every command that looks, and hands what became of it to `check`.
fn look(store: &str, mut check: impl FnMut(&str, Finished)) {
    let elsewhere = TempDir::new().unwrap();
    let target = |name: &str| format!("sled:{}", elsewhere.path().join(name).display());
    for command in ["stat", "verify", "export", "tail"] {
        check(command, petstore(["log", command, "--store", store]));
    }
    for command in ["copy", "salvage"] {
        check(command, petstore(["log", command, "--from", store, "--to", &target(command)]));
    }
}

/// Everything that can be seen of a file or directory, and of what is in it.
fn listing(path: &Path) -> Vec<(PathBuf, [i64; 6], Vec<u8>)> {
    let about = path.symlink_metadata().unwrap();
    let stamps = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
    let owner = [i64::from(about.uid()), i64::from(about.mode())];
    let facts = [owner[0], owner[1], stamps[0], stamps[1], stamps[2], stamps[3]];
    if !about.is_dir() {
        return vec![(path.into(), facts, fs::read(path).unwrap())];
    }
    let mut entries: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let own = (path.into(), facts, vec![]);
    [own].into_iter().chain(entries.iter().flat_map(|entry| listing(entry))).collect()
}

fn names(listing: &[(PathBuf, [i64; 6], Vec<u8>)]) -> Vec<&Path> {
    listing.iter().map(|(path, ..)| path.as_path()).collect()
}

#[test]
fn looking_changes_nothing_in_a_store_and_works_on_a_read_only_mount() {
    for engine in ENGINES {
        for end in [End::Stopped, End::Killed] {
            let directory = TempDir::new().unwrap();
            let store = store_in(directory.path(), engine, end);
            let before = listing(directory.path());
            look(&store, |command, finished| {
                let case = format!("{command}, {engine}, {end:?}: {}", finished.stderr);
                assert_eq!(finished.code, Some(0), "{case}");
                let after = listing(directory.path());
                assert_eq!(names(&after), names(&before), "{case}");
                assert!(after == before, "{case}: times, owners and bytes stay");
            });
            let path = directory.path().to_str().unwrap();
            let bound = disk::run("mount", &["--bind", path, path])
                .and_then(|()| disk::run("mount", &["-o", "remount,bind,ro", path]));
            if available("looking at a store on a read-only mount", bound).is_none() {
                continue;
            }
            let mut outcomes = Vec::new();
            look(&store, |command, finished| outcomes.push((command.to_owned(), finished)));
            disk::run("umount", &[path]).unwrap();
            for (command, finished) in outcomes {
                assert_eq!(finished.code, Some(0), "{command}, {engine}, {end:?}: {}", finished.stderr);
            }
        }
    }
}

#[test]
fn stat_verify_and_the_list_of_keys_are_json_on_request() {
    let mut app = App::on_engine("sqlite", &[]);
    app.add("Rex");
    assert!(app.terminate().success());
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&petstore(arguments.iter().chain(&["--json"])).exits_with(0).stdout).unwrap()
    };
    let store = ["--store", app.store()];
    let stat = json(&[&["log", "stat"], &store[..]].concat());
    assert_eq!(
        (&stat["position"], &stat["events"], &stat["engine"]),
        (&1.into(), &1.into(), &"sqlite".into())
    );
    assert_eq!(stat["durability"]["level"], "synced");
    let verified = json(&[&["log", "verify"], &store[..]].concat());
    let text = petstore([&["log", "verify"], &store[..]].concat());
    assert_eq!((&verified["intact"], &verified["head"]), (&true.into(), &text.value("head hash").into()));
    assert_eq!(verified["head"], text.value("head hash"));
    let keys = json(&["keys", "list", "--keys", app.keys_file().to_str().unwrap()]);
    assert_eq!(
        (&keys["name"], &keys["state"], &keys["scopes"][1]),
        (&"test".into(), &"active".into(), &"write".into())
    );
}

#[test]
fn a_store_in_use_is_not_looked_at() {
    for engine in ENGINES {
        let directory = TempDir::new().unwrap();
        let store = format!("{engine}:{}", directory.path().join("log").display());
        let _app = App::on(&store);
        look(&store, |command, finished| {
            assert_eq!(finished.code, Some(1), "{command}, {engine}");
            for words in [
                "is in use by another process; if that is a running service",
                "--admin-listen 127.0.0.1:9080",
                "petstore keys issue --name log --scope log",
                "http://127.0.0.1:9080 as the store and --api-key-file log.key",
            ] {
                assert!(finished.stderr.contains(words), "{command}: {}", finished.stderr);
            }
        });
    }
}

#[test]
fn a_copy_that_was_looked_at_is_removed() {
    let (directory, temporary) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store_in(directory.path(), "sled", End::Killed);
    let mut stat = Command::new(program());
    finished(stat.args(["log", "stat", "--store", &store]).env("TMPDIR", temporary.path())).exits_with(0);
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0);
}

#[test]
fn tail_shows_the_last_commits_and_then_the_new_ones() {
    let server = PostgresServer::start();
    let app = App::on(&server.url("postgres"));
    for count in 1..=12 {
        app.add(&format!("pet {count}"));
    }
    let mut tail = Command::new(program())
        .args(["log", "tail", "--store", app.store()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(Result::unwrap);
    for count in 3..=12 {
        assert!(lines.next().unwrap().contains(&format!("\"pet {count}\"")));
    }
    app.add("Max");
    assert!(lines.next().unwrap().contains("\"Max\""));
    tail.kill().unwrap();
    tail.wait().unwrap();
}
