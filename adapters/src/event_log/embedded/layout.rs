//! The paths of a store's files, their permissions, and the lock, which admits either one writer or any number of readers.

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

/// Ends the message about a store that cannot be read because another process may write to it.
pub const IN_USE: &str = "is in use by another process";

/// The paths of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The store itself: a directory or a file. If the operator named a link to a file, its target.
    pub path: PathBuf,
    /// The directory that holds the files.
    pub directory: PathBuf,
    /// Locked by the process that has the store open.
    pub(super) lock: PathBuf,
    pub(super) mark: PathBuf,
    /// Reserved space, which is released when the disk is full.
    pub(super) ballast: PathBuf,
    /// The failed-sync marker: exists while the page cache may hold data that the disk does not.
    pub(super) not_synced: PathBuf,
}

impl Layout {
    /// A store that has a directory to itself.
    pub fn in_directory(path: &Path) -> Self {
        Self::new(path, path, |name| path.join(name))
    }

    /// A store in one file, with its other files next to it. A link is resolved first, so that every path to the file
    /// leads to the same lock.
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

    /// Whether the failed-sync marker exists.
    pub fn has_failed_sync_marker(&self) -> bool {
        self.not_synced.symlink_metadata().is_ok()
    }

    /// The path of the store with a suffix.
    pub fn with_suffix(&self, ending: &str) -> PathBuf {
        with_suffix(&self.path, ending)
    }

    /// Rejects a file where a directory is expected, and vice versa, and a link to nothing.
    pub(super) fn check_kind(&self) -> Result<(), LogError> {
        let is_directory = self.path == self.directory;
        let why = match self.path.metadata() {
            Err(_) if self.path.is_symlink() => {
                "is a link whose target cannot be read: mount its disk, or correct the link"
            }
            Ok(found) if is_directory && !found.is_dir() => "is not a directory; choose another path",
            Ok(found) if !is_directory && !found.is_file() => "is not a file; choose another path",
            Ok(_) | Err(_) => return Ok(()),
        };
        Err(self.rejected(why))
    }

    /// Creates the directory if it is missing, and takes the exclusive lock. Dropping the file releases the lock.
    pub(super) fn lock(&self) -> Result<File, LogError> {
        let lock = create_directories(&self.directory).and_then(|()| open_or_create(&self.lock));
        let lock = lock.map_err(|error| {
            let lock = self.lock.display();
            self.rejected(&format!(
                "cannot be written to ({lock}: {error}); make it and its directory writable by this user, or choose another path"
            ))
        })?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => {
                Err(self.rejected("is in use by another process; stop that process or choose another path"))
            }
            Err(TryLockError::Error(error)) => Err(self.rejected(&format!(
                "cannot be locked ({error}); choose a path on a file system that supports locks"
            ))),
        }
    }

    /// Takes a shared lock, which excludes writers. Changes nothing. Returns `None` if there is no readable lock file.
    pub(super) fn lock_shared(&self) -> Result<Option<File>, LogError> {
        let Ok(lock) = open_to_read(&self.lock) else { return Ok(None) };
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(self.rejected(IN_USE)),
            // A file system without locks must not prevent reading.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(lock)),
        }
    }

    /// The error for a store that cannot be opened. `why` completes the sentence "the store PATH …".
    pub(super) fn rejected(&self, why: &str) -> LogError {
        Fault::CannotOpen.error(format!("the store {} {why}", self.path.display()))
    }
}

/// Makes files private to their owner, and syncs them and their directory.
pub fn sync_files(directory: &Path, files: &[PathBuf]) -> io::Result<()> {
    for path in files {
        let file = open_to_read(path)?;
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        file.sync_all()?;
    }
    sync_directory(directory)
}
