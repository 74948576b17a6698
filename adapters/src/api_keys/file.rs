//! The key file: any process may read it, one at a time changes it, and none ever sees half of a change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use application::{KeyId, Scopes};
use chrono::{DateTime, SubsecRound as _, Utc};
use thiserror::Error;

use super::{
    document,
    key::ApiKey,
    record::{KeyName, KeyRecord, KeyState},
};
use crate::private_files;

/// The file that lists the keys. Nodes may share one file, or have copies of it.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
}

/// The wanted properties of a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Whose it is.
    pub name: KeyName,
    /// What it may do.
    pub scopes: Scopes,
    /// When it expires, if ever.
    pub expires: Option<DateTime<Utc>>,
}

/// A key that was just issued.
#[derive(Debug)]
pub struct Issued {
    /// The secret, which cannot be shown a second time.
    pub key: ApiKey,
    /// Its entry in the file.
    pub record: KeyRecord,
    /// How many other active keys have the same name.
    pub namesakes: usize,
}

/// What revoking has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// The key is revoked from now on.
    Now(KeyRecord),
    /// It was revoked before; nothing has changed.
    Before(KeyRecord),
}

/// Why the key file cannot be used, named by what the caller does next.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// It does not exist: create it.
    #[error("there is no key file {path}: create one with `petstore keys issue`, or correct --keys", path = .0.display())]
    Missing(PathBuf),
    /// Its content is not valid: correct it or restore it.
    #[error("the key file {path} cannot be used: {what}; correct it or restore a copy", path = .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Another process is changing it: try again.
    #[error("another process holds the lock {path}: try again when it has ended", path = .0.display())]
    Locked(PathBuf),
    /// The system refused: check the path.
    #[error("cannot {action} {path}: {cause}; check the path, its permissions and the free space", path = .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
}

/// Why no key was issued.
#[derive(Debug, Error)]
pub enum IssueError {
    /// It holds as many keys as it may: delete entries that are no longer used.
    #[error("the key file {path} already holds {max} keys, the maximum: delete the entries of revoked or expired keys from it", path = .0.display(), max = KeyFile::KEYS_MAX)]
    Full(PathBuf),
    /// The system has no random numbers, so no key would be secret.
    #[error("the system's random number generator failed: {0}; try again")]
    NoRandomness(getrandom::Error),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] KeyFileError),
}

/// Why no key was revoked.
#[derive(Debug, Error)]
pub enum RevokeError {
    /// No key has this id: choose one of these.
    #[error("no key has this id")]
    Unknown(Vec<KeyRecord>),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] KeyFileError),
}

impl KeyFile {
    /// The most entries, including revoked and expired ones.
    pub const KEYS_MAX: usize = 10_000;
    /// The largest file: more than the most entries with the longest names need.
    pub const BYTES_MAX: u64 = 8 * 1024 * 1024;

    /// How long a change waits for another one. Changes take milliseconds.
    const LOCK_PATIENCE: Duration = Duration::from_secs(10);

    /// The key file at `path`, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file with the secret of the first key.
    pub fn first_key(&self) -> PathBuf {
        private_files::folder_of(&self.path).join(KeyName::of_the_first_key().as_str())
    }

    /// Every key, in the order of issue.
    pub fn keys(&self) -> Result<Vec<KeyRecord>, KeyFileError> {
        self.parse(&self.read()?)
    }

    /// Adds a new key. Creates the file and its folder if they are missing.
    pub fn issue(&self, new: NewKey, now: DateTime<Utc>) -> Result<Issued, IssueError> {
        self.create_folder()?;
        let lock = self.lock(Self::LOCK_PATIENCE)?;
        let mut records = match lock.keys() {
            Err(KeyFileError::Missing(_)) => Vec::new(),
            found => found?,
        };
        let issued = self.generate(new, &records, now)?;
        records.push(issued.record.clone());
        lock.store(&records)?;
        Ok(issued)
    }

    /// Creates the file with one key that may read and write, unless the file exists, and writes the secret to a
    /// file of its own beside it. Returns the path of that file, or `None` if there was a key file already.
    pub fn issue_first(&self, now: DateTime<Utc>) -> Result<Option<PathBuf>, IssueError> {
        // Checked before locking too, because an existing file may lie where nothing can be written.
        if self.exists() {
            return Ok(None);
        }
        self.create_folder()?;
        let lock = self.lock(Self::LOCK_PATIENCE)?;
        if self.exists() {
            return Ok(None);
        }
        let new = NewKey { name: KeyName::of_the_first_key(), scopes: Scopes::READ_WRITE, expires: None };
        let Issued { key, record, .. } = self.generate(new, &[], now)?;
        // The secret is written first: after a kill in between, the next start finds no key file and starts over.
        let path = self.first_key();
        let line = format!("{}\n", key.reveal());
        private_files::replace(&path, line.as_bytes()).map_err(io_error("write", &path))?;
        lock.store(&[record])?;
        Ok(Some(path))
    }

    /// Revokes a key, for ever.
    pub fn revoke(&self, id: &KeyId, now: DateTime<Utc>) -> Result<Revoked, RevokeError> {
        // Without a file there is nothing to revoke, and perhaps no folder for the lock.
        self.read()?;
        let lock = self.lock(Self::LOCK_PATIENCE)?;
        let mut records = lock.keys()?;
        let Some(record) = records.iter_mut().find(|record| record.id() == *id) else {
            return Err(RevokeError::Unknown(records));
        };
        if record.revoked.is_some() {
            return Ok(Revoked::Before(record.clone()));
        }
        record.revoked = Some(now.trunc_subsecs(0));
        let revoked = record.clone();
        lock.store(&records)?;
        Ok(Revoked::Now(revoked))
    }

    pub(super) fn read(&self) -> Result<Vec<u8>, KeyFileError> {
        private_files::read_named(&self.path, Self::BYTES_MAX).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => KeyFileError::Missing(self.path.clone()),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => self.broken(error.to_string()),
            _ => io_error("read", &self.path)(error),
        })
    }

    pub(super) fn parse(&self, content: &[u8]) -> Result<Vec<KeyRecord>, KeyFileError> {
        let records = document::parse(content).map_err(|what| self.broken(what))?;
        if records.len() > Self::KEYS_MAX {
            return Err(self.broken(format!("it holds more than {} keys", Self::KEYS_MAX)));
        }
        Ok(records)
    }

    /// Waits until no other process changes this file or the files that belong to it. Reading needs no lock.
    pub(super) fn lock(&self, patience: Duration) -> Result<LockedKeyFile, KeyFileError> {
        let target = Self::at(self.target());
        let path = private_files::beside(&target.path, ".lock");
        match private_files::lock(&path, patience) {
            Ok(lock) => Ok(LockedKeyFile { target, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(KeyFileError::Locked(path)),
            Err(error) => Err(io_error("lock", &path)(error)),
        }
    }

    /// The file behind all links: this one is locked and changed, whichever path leads to it.
    pub(super) fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    /// Whether anything exists at the path. Even what cannot be read must not be replaced.
    fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    fn generate(&self, new: NewKey, others: &[KeyRecord], now: DateTime<Utc>) -> Result<Issued, IssueError> {
        if others.len() >= Self::KEYS_MAX {
            return Err(IssueError::Full(self.path.clone()));
        }
        let NewKey { name, scopes, expires } = new;
        // The file keeps whole seconds.
        let (created, expires) = (now.trunc_subsecs(0), expires.map(|end| end.trunc_subsecs(0)));
        let is_namesake = |other: &&KeyRecord| other.name == name && other.state(now) == KeyState::Active;
        let namesakes = others.iter().filter(is_namesake).count();
        loop {
            let key = ApiKey::generate().map_err(IssueError::NoRandomness)?;
            let hash = key.hash();
            if others.iter().all(|other| other.hash.id_bytes() != hash.id_bytes()) {
                let record = KeyRecord { hash, name, scopes, created, expires, revoked: None };
                return Ok(Issued { key, record, namesakes });
            }
        }
    }

    fn create_folder(&self) -> Result<(), KeyFileError> {
        let folder = private_files::folder_of(&self.path);
        private_files::create_folders(folder).map_err(io_error("create the folder", folder))
    }

    fn broken(&self, what: String) -> KeyFileError {
        KeyFileError::Broken { path: self.path.clone(), what }
    }
}

/// The key file while no other process may change it. Dropping this ends that.
pub(super) struct LockedKeyFile {
    target: KeyFile,
    _lock: fs::File,
}

impl LockedKeyFile {
    /// The file itself, behind all links.
    pub(super) fn path(&self) -> &Path {
        &self.target.path
    }

    fn keys(&self) -> Result<Vec<KeyRecord>, KeyFileError> {
        self.target.keys()
    }

    fn store(&self, records: &[KeyRecord]) -> Result<(), KeyFileError> {
        let text = document::write(records);
        private_files::replace(self.path(), text.as_bytes()).map_err(io_error("write", self.path()))
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    move |cause| KeyFileError::Io { action, path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests;
