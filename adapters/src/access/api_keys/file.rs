//! The key file: any process may read it, one at a time may change it, and readers never see a partial change.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use thiserror::Error;

use super::{
    document,
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
    /// It does not exist: restore it, or correct the path. A new one has none of the earlier keys.
    #[error("the key file {path} does not exist: correct the path, or restore it from a backup; only if this service never had a \
             key file, create it with `petstore keys issue`", path = .0.display())]
    Missing(PathBuf),
    /// No key has the given id or name: list the keys. The message omits it, because it may be a mistyped key.
    #[error("no key has this id or name: `petstore keys list` shows the keys in {path}", path = .0.display())]
    UnknownKey(PathBuf),
    /// It cannot be read or changed: do what the text says.
    #[error("{0}")]
    Unusable(String),
}

impl KeyFile {
    /// The maximum number of entries, including revoked and expired ones.
    pub const KEYS_MAX: usize = 10_000;
    /// The maximum size: more than the maximum number of entries with the longest names.
    pub const BYTES_MAX: u64 = 8 * 1024 * 1024;

    /// How long a change waits for the lock. Changes take milliseconds.
    const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

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
            // The file may be on a disk that is not mounted. A new one would reject every earlier key.
            io::ErrorKind::NotFound if self.path.is_symlink() => KeyFileError::Unusable(format!(
                "the key file {} is a link to a file that does not exist: mount its disk, or restore that file",
                self.path.display()
            )),
            io::ErrorKind::NotFound => KeyFileError::Missing(self.path.clone()),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => self.broken(error),
            _ => io_error("read", &self.path)(error),
        })
    }

    pub(super) fn parse(&self, content: &[u8]) -> Result<Vec<KeyRecord>, KeyFileError> {
        let records = document::parse(content, &self.path).map_err(KeyFileError::Unusable)?;
        if records.len() > Self::KEYS_MAX {
            return Err(self.broken(format!("it holds more than {} keys", Self::KEYS_MAX)));
        }
        Ok(records)
    }

    fn broken(&self, what: impl fmt::Display) -> KeyFileError {
        KeyFileError::Unusable(document::broken(&self.path, what))
    }

    /// Rejects a file that other users could change or replace.
    pub fn check_protection(&self) -> Result<(), KeyFileError> {
        let unprotected = |path: &Path, mode| {
            let path = path.display();
            KeyFileError::Unusable(format!(
                "other users can write to {path} and add API keys: run chmod {mode} {path}"
            ))
        };
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
    pub(super) fn lock(&self) -> Result<LockedKeyFile, KeyFileError> {
        let target = Self::at(self.target());
        let path = private_files::with_suffix(&target.path, ".lock");
        match private_files::lock(&path, Self::LOCK_TIMEOUT) {
            Ok(lock) => Ok(LockedKeyFile { target, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(KeyFileError::Unusable(format!(
                "another process holds the lock {}: try again when that process has finished",
                path.display()
            ))),
            Err(error) => Err(io_error("lock", &path)(error)),
        }
    }

    /// The file behind all links.
    pub(super) fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }
}

/// The locked key file. Dropping it releases the lock.
pub(super) struct LockedKeyFile {
    target: KeyFile,
    _lock: fs::File,
}

impl LockedKeyFile {
    /// Every key. Rejects a file that other users could have changed: storing it again would protect and activate their
    /// keys.
    pub(super) fn keys(&self) -> Result<Vec<KeyRecord>, KeyFileError> {
        let records = self.target.keys()?;
        self.target.check_protection()?;
        Ok(records)
    }

    pub(super) fn store(&self, records: &[KeyRecord]) -> Result<(), KeyFileError> {
        let (path, text) = (&self.target.path, document::write(records));
        private_files::replace(path, text.as_bytes()).map_err(io_error("write", path))
    }
}

pub(super) fn io_error(action: &str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    move |cause| {
        let path = path.display();
        KeyFileError::Unusable(format!("cannot {action} {path}: {cause}; check the path and its permissions"))
    }
}

#[cfg(test)]
mod tests;
