//! The key file: read by everybody, changed by one process at a time, and never seen half written.

use std::{
    fs, io,
    path::{Path, PathBuf},
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

/// The file that says which keys there are. Nodes may share one, or copies of one.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
}

/// What somebody wants a key for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Whose it is.
    pub name: KeyName,
    /// What it may do.
    pub scopes: Scopes,
    /// When it ends by itself, if ever.
    pub expires: Option<DateTime<Utc>>,
}

/// A key that has just been made.
#[derive(Debug)]
pub struct Issued {
    /// The secret. There is no second chance to see it.
    pub key: ApiKey,
    /// What the file knows about it.
    pub record: KeyRecord,
    /// How many other active keys have the same name. That is how a key is exchanged without a gap, so it is allowed.
    pub namesakes: usize,
}

/// What became of a wish to revoke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// The key is revoked as of now.
    Now(KeyRecord),
    /// It had been revoked before; nothing changed.
    Before(KeyRecord),
}

/// Why the key file cannot be used, named by what the caller does next.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// There is none: make one.
    #[error("there is no key file {path}: make one with `petstore keys issue`, or correct --keys", path = .0.display())]
    Missing(PathBuf),
    /// What it says cannot be trusted: mend it or restore it.
    #[error("the key file {path} cannot be used: {what}; correct it or restore a copy", path = .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The system refused: see to it that the path can be used.
    #[error("cannot {action} {path}: {cause}; check the path, its permissions and the free space", path = .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// Why no key was issued.
#[derive(Debug, Error)]
pub enum IssueError {
    /// No room: remove entries that are of no use any more.
    #[error("the key file {path} already holds {max} keys, which is the most: delete the entries of revoked or expired keys from it", path = .0.display(), max = KeyFile::KEYS_MAX)]
    Full(PathBuf),
    /// The system gives no random numbers, so no key would be a secret.
    #[error("the system's source of randomness failed: {0}; try again")]
    NoRandomness(getrandom::Error),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] KeyFileError),
}

/// Why no key was revoked.
#[derive(Debug, Error)]
pub enum RevokeError {
    /// Choose one of these.
    #[error("no key has this id")]
    Unknown(Vec<KeyRecord>),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] KeyFileError),
}

impl KeyFile {
    /// The most entries, revoked and expired ones too.
    pub const KEYS_MAX: usize = 10_000;
    /// The largest file: more than the most entries with the longest names take.
    pub const BYTES_MAX: u64 = 8 * 1024 * 1024;

    /// The key file at `path`, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the secret of the first key is left.
    pub fn first_key(&self) -> PathBuf {
        private_files::folder_of(&self.path).join(KeyName::of_the_first_key().as_str())
    }

    /// Every key there is, in the order of issue.
    pub fn keys(&self) -> Result<Vec<KeyRecord>, KeyFileError> {
        self.parse(&self.read()?)
    }

    /// Adds a new key. Makes the file and its folder when they are missing.
    pub fn issue(&self, new: NewKey, now: DateTime<Utc>) -> Result<Issued, IssueError> {
        self.create_folder()?;
        let lock = self.lock()?;
        let mut records = match lock.keys() {
            Err(KeyFileError::Missing(_)) => Vec::new(),
            found => found?,
        };
        let issued = self.make_key(new, &records, now)?;
        records.push(issued.record.clone());
        lock.store(&records)?;
        Ok(issued)
    }

    /// Makes the file with one key for everything, unless it exists, and leaves the secret in a file of its own
    /// beside it. The path of that file, or `None` if there was a key file already.
    pub fn issue_first(&self, now: DateTime<Utc>) -> Result<Option<PathBuf>, IssueError> {
        // Asked before the lock is taken as well, because an existing file may lie where nothing can be written.
        if self.is_there() {
            return Ok(None);
        }
        self.create_folder()?;
        let lock = self.lock()?;
        if self.is_there() {
            return Ok(None);
        }
        let new = NewKey { name: KeyName::of_the_first_key(), scopes: Scopes::READ_WRITE, expires: None };
        let Issued { key, record, .. } = self.make_key(new, &[], now)?;
        // The secret goes first: killed in between, the next start finds no key file and begins anew.
        let path = self.first_key();
        let line = format!("{}\n", key.reveal());
        private_files::replace(&path, line.as_bytes()).map_err(io_error("write", &path))?;
        lock.store(&[record])?;
        Ok(Some(path))
    }

    /// Takes a key back, for ever.
    pub fn revoke(&self, id: &KeyId, now: DateTime<Utc>) -> Result<Revoked, RevokeError> {
        // Without a file there is nothing to revoke, and no folder to put a lock into either.
        self.read()?;
        let lock = self.lock()?;
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

    /// Waits for the right to change this file and what belongs to it.
    pub(super) fn lock(&self) -> Result<LockedKeyFile, KeyFileError> {
        let target = Self::at(self.target());
        let path = private_files::beside(&target.path, ".lock");
        let lock = private_files::lock(&path).map_err(io_error("lock", &path))?;
        Ok(LockedKeyFile { target, _lock: lock })
    }

    /// The file behind all links: that one is locked and changed, whatever way led to it.
    pub(super) fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    /// Whether anything stands at the path. Even if it cannot be read, it is not ours to replace.
    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    fn make_key(&self, new: NewKey, others: &[KeyRecord], now: DateTime<Utc>) -> Result<Issued, IssueError> {
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
        private_files::create_folders(folder).map_err(io_error("make the folder", folder))
    }

    fn broken(&self, what: String) -> KeyFileError {
        KeyFileError::Broken { path: self.path.clone(), what }
    }
}

/// The right to change the key file, held until this is dropped.
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
