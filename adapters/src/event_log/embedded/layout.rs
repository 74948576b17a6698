//! Where the files of a store are, who may read them, and the lock that lets only one process at a time open
//! it.

use std::{
    fs::{File, Permissions, TryLockError},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError};

use crate::private_files::{
    FILE_MODE, create_directories, directory_of, open_or_create, open_to_read, sync_directory, with_suffix,
};

/// Where a store keeps what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// What the operator calls the store: a directory or a file.
    pub path: PathBuf,
    /// The directory that holds the files.
    pub directory: PathBuf,
    /// Held by the process that has the store open.
    pub(super) lock: PathBuf,
    /// How far the log is known to reach.
    pub(super) mark: PathBuf,
    /// Space that is given back when the disk is full.
    pub(super) ballast: PathBuf,
    /// Exists while the files may show data that the disk does not have.
    pub(super) not_synced: PathBuf,
}

impl Layout {
    /// A store that has a directory to itself.
    pub fn in_directory(path: &Path) -> Self {
        Self::new(path, path, |name| path.join(name))
    }

    /// A store in one file, with the others beside it. If the operator names a link, they are beside the file that it
    /// leads to: whatever the file is called, one process at a time opens it.
    pub fn next_to_file(path: &Path) -> Self {
        let resolved = if path.is_symlink() { path.canonicalize().ok() } else { None };
        let path = resolved.as_deref().unwrap_or(path);
        Self::new(path, directory_of(path), |name| with_suffix(path, &format!(".{name}")))
    }

    fn new(path: &Path, directory: &Path, file: impl Fn(&str) -> PathBuf) -> Self {
        Self {
            path: path.into(),
            directory: directory.into(),
            lock: file("lock"),
            mark: file("mark"),
            ballast: file("ballast"),
            not_synced: file("not-synced"),
        }
    }

    /// Whether this or an earlier process has left the failed-sync marker.
    pub fn has_failed_sync_marker(&self) -> bool {
        self.not_synced.symlink_metadata().is_ok()
    }

    /// A file of the engine whose name is that of the store with something added.
    pub fn with_suffix(&self, ending: &str) -> PathBuf {
        with_suffix(&self.path, ending)
    }

    /// Refuses a file where a directory is expected, and the other way round.
    pub(super) fn check_kind(&self) -> Result<(), LogError> {
        let Ok(about) = self.path.metadata() else { return Ok(()) };
        let (fits, kind) = if self.path == self.directory {
            (about.is_dir(), "directory")
        } else {
            (about.is_file(), "file")
        };
        if fits {
            return Ok(());
        }
        let detail = format!("{} is not a {kind}; choose another path for the store", self.path.display());
        Err(LogError::new(Fault::CannotOpen, detail))
    }

    /// Creates the directory if it is missing, and keeps other processes out until the file is dropped.
    pub(super) fn lock(&self) -> Result<File, LogError> {
        let lock = create_directories(&self.directory).and_then(|()| open_or_create(&self.lock));
        let lock = lock.map_err(|error| self.not_writable(&error))?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(self.in_use()),
            Err(TryLockError::Error(error)) => Err(self.not_writable(&error)),
        }
    }

    /// Keeps processes out that write until the file is dropped, and changes nothing. Without a lock that can be read
    /// nobody has the store open, or nobody can tell.
    pub(super) fn lock_shared(&self) -> Result<Option<File>, LogError> {
        let Ok(lock) = open_to_read(&self.lock) else { return Ok(None) };
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(self.in_use()),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(lock)),
        }
    }

    /// There is no store at the path.
    pub(super) fn missing(&self) -> LogError {
        let detail = format!("there is no store at {}; check the path", self.path.display());
        LogError::new(Fault::CannotOpen, detail)
    }

    /// The store cannot be opened, and why.
    pub(super) fn rejected(&self, why: &str) -> LogError {
        LogError::new(Fault::CannotOpen, format!("the store {} {why}", self.path.display()))
    }

    fn in_use(&self) -> LogError {
        self.rejected("is in use by another process; stop that process or choose another path")
    }

    fn not_writable(&self, error: &io::Error) -> LogError {
        self.rejected(&format!(
            "cannot be written to ({error}); make it and its directory writable for this user, or choose another path"
        ))
    }
}

/// Closes files to every other user, and brings them and the names in their directory to the disk.
pub fn sync_files(directory: &Path, files: &[PathBuf]) -> io::Result<()> {
    for path in files {
        let file = open_to_read(path)?;
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        file.sync_all()?;
    }
    sync_directory(directory)
}
