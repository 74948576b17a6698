//! The key file: any process may read it, one at a time may change it, and readers never see a partial change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use application::KeyId;
use thiserror::Error;

use super::{
    document::{self, ParseError},
    record::{KeyName, KeyRecord},
};
use crate::private_files;

/// The key file. Nodes may share one file, or have copies of it.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
}

/// An error of the key file, with what to do next.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// It does not exist: create it.
    #[error("the key file {path} does not exist: create it with `petstore keys issue`, or correct the path", path = .0.display())]
    Missing(PathBuf),
    /// Its directory does not exist: create the directory.
    #[error("the directory {path} does not exist: create it, or correct the path of the key file", path = .0.display())]
    NoDirectory(PathBuf),
    /// Its content is not valid: correct it or restore it.
    #[error("the key file {path} cannot be used: {what}; correct the file or the path, or restore a backup", path = .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        what: String,
    },
    /// Other users could change or replace it: change its mode.
    #[error(
        "other users can write to {path} and add API keys: run chmod {mode} {path}", path = .path.display()
    )]
    Unprotected {
        /// The file, or the directory that it is in.
        path: PathBuf,
        /// The mode to set.
        mode: &'static str,
    },
    /// Another version of petstore wrote it: use that version.
    #[error(
        "the key file {path} has format version {version}, and this petstore reads 1 to {max}: run the petstore that wrote it, or \
         restore a backup", path = .path.display(), max = document::KEY_FILE_VERSION
    )]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// Another process is changing it: try again.
    #[error("another process holds the lock {path}: try again when that process has finished", path = .0.display())]
    Locked(PathBuf),
    /// A system error: check the path.
    #[error("cannot {action} {path}: {cause}; check the path and its permissions", path = .path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// It holds as many keys as it may: delete entries that are no longer used.
    #[error("the key file {path} already holds {max} keys, the maximum: delete the entries of revoked or expired keys from it", path = .0.display(), max = KeyFile::KEYS_MAX)]
    Full(PathBuf),
    /// The random number generator of the system failed, and without it a key could be guessed.
    #[error("the system's random number generator failed: {0}; try again")]
    NoRandomness(getrandom::Error),
    /// No key has the given id: choose one of these.
    #[error("no key has this id")]
    UnknownKey(Vec<KeyRecord>),
    /// The key was already rotated: rotate its successor.
    #[error("key {0} was already rotated: rotate {1}, the owner's newest key")]
    Replaced(KeyId, KeyId),
}

impl KeyFile {
    /// The maximum number of entries, including revoked and expired ones.
    pub const KEYS_MAX: usize = 10_000;
    /// The maximum size: more than the maximum number of entries with the longest names.
    pub const BYTES_MAX: u64 = 8 * 1024 * 1024;

    /// How long a change waits for the lock. Changes take milliseconds.
    pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

    /// The key file at `path`, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file with the secret of the first key.
    pub fn first_key_path(&self) -> PathBuf {
        private_files::directory_of(&self.path).join(KeyName::of_the_first_key().as_str())
    }

    /// Every key, in the order of issue.
    pub fn keys(&self) -> Result<Vec<KeyRecord>, KeyFileError> {
        self.parse(&self.read()?)
    }

    pub(super) fn read(&self) -> Result<Vec<u8>, KeyFileError> {
        private_files::read_named(&self.path, Self::BYTES_MAX).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => KeyFileError::Missing(self.path.clone()),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => self.broken(error.to_string()),
            _ => io_error("read", &self.path)(error),
        })
    }

    pub(super) fn parse(&self, content: &[u8]) -> Result<Vec<KeyRecord>, KeyFileError> {
        let records = document::parse(content).map_err(|error| match error {
            ParseError::Invalid(what) => self.broken(what),
            ParseError::UnsupportedVersion(version) => {
                KeyFileError::UnsupportedVersion { path: self.path.clone(), version }
            }
        })?;
        if records.len() > Self::KEYS_MAX {
            return Err(self.broken(format!("it holds more than {} keys", Self::KEYS_MAX)));
        }
        Ok(records)
    }

    /// Rejects a file that other users could change or replace.
    pub fn check_protection(&self) -> Result<(), KeyFileError> {
        let unprotected = |path: &Path, mode| KeyFileError::Unprotected { path: path.to_owned(), mode };
        if private_files::is_writable_by_others(&self.path) {
            return Err(unprotected(&self.path, "go-w"));
        }
        // Both a link and its target may be replaceable.
        for path in [&self.path, &self.target()] {
            if private_files::is_replaceable_by_others(path) {
                return Err(unprotected(private_files::directory_of(path), "o-w"));
            }
        }
        Ok(())
    }

    /// Locks the key file and the files that belong to it against changes by other processes. Reading needs no lock.
    pub(super) fn lock(&self, timeout: Duration) -> Result<LockedKeyFile, KeyFileError> {
        let target =
            Self::at(private_files::behind_links(&self.path).map_err(io_error("change", &self.path))?);
        let path = private_files::with_suffix(&target.path, ".lock");
        match private_files::lock(&path, timeout) {
            Ok(lock) => Ok(LockedKeyFile { target, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(KeyFileError::Locked(path)),
            Err(error) => Err(io_error("lock", &path)(error)),
        }
    }

    /// The file behind all links.
    pub(super) fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    fn broken(&self, what: String) -> KeyFileError {
        KeyFileError::Broken { path: self.path.clone(), what }
    }
}

/// The locked key file. Dropping it releases the lock.
pub(super) struct LockedKeyFile {
    target: KeyFile,
    _lock: fs::File,
}

impl LockedKeyFile {
    /// The file itself, behind all links.
    pub(super) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Every key. Rejects a file that other users could have changed: storing it again would protect and activate their
    /// keys.
    pub(super) fn keys(&self) -> Result<Vec<KeyRecord>, KeyFileError> {
        let records = self.target.keys()?;
        self.target.check_protection()?;
        Ok(records)
    }

    pub(super) fn store(&self, records: &[KeyRecord]) -> Result<(), KeyFileError> {
        let text = document::write(records);
        private_files::replace(self.path(), text.as_bytes()).map_err(io_error("write", self.path()))
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    move |cause| KeyFileError::Io { action, path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests;
