//! The files of a log: the database, and beside it the high-water mark and a lock that lets one process in.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError};

use crate::event_log::disk::{self, FILE_MODE, create_folders, folder_of};

/// Who may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// Any log; a missing one is made.
    OrCreate,
    /// Only a log that exists.
    Existing,
}

/// The files of one log, held by this process until it is dropped.
#[derive(Debug)]
pub(super) struct Files {
    database: PathBuf,
    _lock: File,
}

impl Files {
    /// Takes hold of the files, and makes an empty database if there is none.
    pub(super) fn open(path: &Path, opening: Opening) -> Result<Self, LogError> {
        let there = path.exists();
        if there && !path.is_file() {
            let detail = format!("{} is not a file; choose another path for the log", path.display());
            return Err(LogError::new(Fault::CannotOpen, detail));
        }
        if !there && opening == Opening::Existing {
            let detail = format!("there is no log at {}; check the path", path.display());
            return Err(LogError::new(Fault::CannotOpen, detail));
        }
        if !there && mark_of(path).exists() {
            let detail = format!(
                "the log {} is gone, but its high-water mark {} is there; restore the log from a backup, or delete the \
                 mark too if the log was deleted on purpose",
                path.display(),
                mark_of(path).display()
            );
            return Err(LogError::new(Fault::Damaged, detail));
        }
        let unusable = |error: io::Error| {
            let detail = format!(
                "the log {} cannot be written to ({error}); make the file and its folder writable for this user or \
                 choose another path",
                path.display()
            );
            LogError::new(Fault::CannotOpen, detail)
        };
        create_folders(folder_of(path)).map_err(unusable)?;
        let lock = lock(path, unusable)?;
        // Created here rather than by SQLite, so that nobody else can open it even for a moment. SQLite gives its
        // own files the mode of the database.
        let database = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(path);
        database.map_err(unusable)?;
        Ok(Self { database: path.into(), _lock: lock })
    }

    pub(super) fn database(&self) -> &Path {
        &self.database
    }

    pub(super) fn mark(&self) -> PathBuf {
        mark_of(&self.database)
    }

    /// Whether there is nothing in the database. SQLite would take that for a new one, and delete what waits.
    pub(super) fn is_empty(&self) -> bool {
        self.database.metadata().is_ok_and(|about| about.len() == 0)
    }

    /// How many bytes wait in the write-ahead log.
    pub(super) fn waiting(&self) -> u64 {
        self.write_ahead_log().metadata().map_or(0, |about| about.len())
    }

    /// Space that is given back when the disk is full.
    pub(super) fn ballast(&self) -> PathBuf {
        beside(&self.database, ".ballast")
    }

    /// Stands there while the files may hold data that the disk does not have.
    pub(super) fn suspicion(&self) -> PathBuf {
        beside(&self.database, ".not-synced")
    }

    /// The files that make up the log, without the index, which SQLite makes anew. Nobody may open them while
    /// SQLite has the database open: closing it would give up the locks that SQLite has on it.
    pub(super) fn parts(&self) -> Vec<PathBuf> {
        // The journal is there only while a database is being made.
        let journal = beside(&self.database, "-journal");
        let mut parts = vec![self.database.clone(), self.write_ahead_log(), journal];
        parts.retain(|part| part.exists());
        parts
    }

    /// Brings to the disk what a process that was killed has left in the cache of the system.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.parts().iter().try_for_each(|part| File::open(part)?.sync_all())?;
        self.sync_folder()
    }

    /// Brings the names of the files to the disk.
    pub(super) fn sync_folder(&self) -> io::Result<()> {
        disk::sync_folder(folder_of(&self.database))
    }

    fn write_ahead_log(&self) -> PathBuf {
        beside(&self.database, "-wal")
    }
}

/// Refuses a log that another process has open. Changes nothing, so the answer holds only for the moment.
pub(super) fn check_unused(path: &Path) -> Result<(), LogError> {
    match File::open(beside(path, ".lock")).map(|lock| lock.try_lock_shared()) {
        Ok(Err(TryLockError::WouldBlock)) => Err(in_use(path)),
        // Without a lock that can be read nobody has the log open, or nobody can tell.
        Ok(Ok(()) | Err(TryLockError::Error(_))) | Err(_) => Ok(()),
    }
}

/// Where the high-water mark of a log lies.
pub(super) fn mark_of(path: &Path) -> PathBuf {
    beside(path, ".mark")
}

fn lock(path: &Path, unusable: impl Fn(io::Error) -> LogError) -> Result<File, LogError> {
    let lock = beside(path, ".lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(lock);
    let file = file.map_err(&unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use(path)),
        Err(TryLockError::Error(error)) => Err(unusable(error)),
    }
}

fn in_use(path: &Path) -> LogError {
    let detail = format!(
        "the log {} is in use by another process; stop that process or choose another path",
        path.display()
    );
    LogError::new(Fault::CannotOpen, detail)
}

/// The path with something added to the name of the file.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}
