//! The embedded engines that the suite runs on, and where their files are.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Names the engine for the scenarios that are not about one engine.
const ENGINE: &str = "TEST_CRASH_ENGINE";

/// An engine that keeps its log in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Sled,
    Sqlite,
}

impl Engine {
    /// The default one of the service, unless the variable names another.
    pub(crate) fn chosen() -> Self {
        match env::var(ENGINE).as_deref() {
            Err(_) | Ok("sled") => Self::Sled,
            Ok("sqlite") => Self::Sqlite,
            Ok(other) => panic!("{ENGINE}={other} is none of the engines in tests/faults/crash/engine.rs"),
        }
    }

    /// The URL of a store that has this directory to itself.
    pub(crate) fn url(self, directory: &Path) -> String {
        match self {
            Self::Sled => format!("sled:{}", directory.display()),
            Self::Sqlite => format!("sqlite:{}", directory.join("pets").display()),
        }
    }

    /// What a store in this directory may consist of, and what this one consists of beyond that.
    pub(crate) fn files(self, directory: &Path) -> Vec<PathBuf> {
        let (usual, directories): (&str, &[&str]) = match self {
            Self::Sled => ("lock mark mark.new ballast not-synced sled sled/db sled/conf", &["", "sled"]),
            Self::Sqlite => (
                "pets pets-wal pets-shm pets-journal pets.lock pets.mark pets.mark.new pets.ballast pets.not-synced",
                &[""],
            ),
        };
        let mut files: Vec<_> = usual.split(' ').chain([""]).map(|name| directory.join(name)).collect();
        for found in directories.iter().filter_map(|name| fs::read_dir(directory.join(name)).ok()) {
            files.extend(found.flatten().map(|entry| entry.path()));
        }
        files
    }

    /// The system calls that make and fill a store.
    pub(crate) fn calls(self) -> impl Iterator<Item = &'static str> {
        let calls = match self {
            Self::Sled => "pwrite64 fdatasync fsync write fallocate openat rename sync_file_range mkdir",
            Self::Sqlite => "pwrite64 fdatasync fsync write ftruncate openat unlink rename fallocate mkdir",
        };
        calls.split(' ')
    }

    /// Those that are made again when a signal has interrupted them, without an error. SQLite takes an
    /// interrupted sync for a failed one.
    pub(crate) fn interruptible(self) -> &'static [&'static str] {
        match self {
            Self::Sled => &["pwrite64", "fdatasync", "fsync", "write", "fallocate"],
            Self::Sqlite => &["pwrite64", "write", "ftruncate"],
        }
    }

    /// The call that makes a commit durable.
    pub(crate) fn sync(self) -> &'static str {
        match self {
            Self::Sled => "fdatasync",
            Self::Sqlite => "fsync",
        }
    }

    /// Which of the calls are let fail: SQLite makes so many to make and open a log that a run with every single
    /// one would hardly get to work.
    pub(crate) fn stride(self) -> u64 {
        match self {
            Self::Sled => 1,
            Self::Sqlite => 5,
        }
    }

    /// Limits on the size of a file under which an empty store still fits, and which a few dozen pets reach.
    /// The index of SQLite's write-ahead log takes 32 KiB from the start.
    pub(crate) fn file_limits(self) -> std::ops::Range<u64> {
        match self {
            Self::Sled => 8_192..40_000,
            Self::Sqlite => 40_000..120_000,
        }
    }
}
