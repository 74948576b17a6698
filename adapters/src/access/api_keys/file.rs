//! The key file: any process may read it, one at a time may change it, and readers never see a partial change.

use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use application::OwnerId;
use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};
use thiserror::Error;

use super::{
    document,
    key::{ApiKey, KeyHash, KeyName, KeyRecord, KeyState, is_id},
};
use crate::{
    access::{KeyId, RateLimit, Scopes},
    private_files,
};

/// The name of the first key, and of the file with its secret.
const FIRST_KEY: &str = "first-key";

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

/// The properties of a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The name that the operator gives it.
    pub name: KeyName,
    /// Its permissions.
    pub scopes: Scopes,
    /// Its rate limit, if it has one.
    pub rate_limit: Option<RateLimit>,
    /// When it expires, if it does.
    pub expires: Option<DateTime<Utc>>,
}

/// A key that was just issued.
#[derive(Debug)]
pub struct Issued {
    /// The secret, which cannot be shown again.
    pub key: ApiKey,
    /// Its entry in the file.
    pub record: KeyRecord,
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
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => {
                KeyFileError::Unusable(document::broken(&self.path, error))
            }
            _ => io_error("read", &self.path)(error),
        })
    }

    pub(super) fn parse(&self, content: &[u8]) -> Result<Vec<KeyRecord>, KeyFileError> {
        document::parse(content, &self.path).map_err(KeyFileError::Unusable)
    }

    /// Rejects a file that other users could change or replace.
    pub fn check_protection(&self) -> Result<(), KeyFileError> {
        // Both a link and its target may be replaceable.
        let target = self.target();
        let paths = [&self.path, &target];
        match paths.into_iter().find_map(|path| private_files::exposed_to_others(path)) {
            None => Ok(()),
            Some((path, mode)) => Err(KeyFileError::Unusable(format!(
                "other users can write to {path} and add API keys: run chmod {mode} {path}",
                path = path.display()
            ))),
        }
    }

    /// Adds a new key. Creates the file if it is missing, but not its directory: a path with a missing directory is
    /// more likely a typo.
    pub fn issue(&self, new: NewKey, now: DateTime<Utc>) -> Result<Issued, KeyFileError> {
        let directory = private_files::directory_of(&self.path);
        if !directory.is_dir() {
            return Err(KeyFileError::Unusable(format!(
                "the directory {} does not exist: create it, or correct the path of the key file",
                directory.display()
            )));
        }
        self.change(|records| self.add(records, new, None, now))
    }

    /// Creates the key file with one key that may read and write, unless the file exists, and writes the secret to a
    /// separate file next to it. Returns the path of that file, or `None` if the key file existed.
    pub fn issue_first(&self, now: DateTime<Utc>) -> Result<Option<PathBuf>, KeyFileError> {
        // Even an unreadable file must not be replaced, and an existing one may be on a read-only disk.
        if fs::symlink_metadata(&self.path).is_ok() {
            return Ok(None);
        }
        let directory = private_files::directory_of(&self.path);
        private_files::create_directories(directory).map_err(io_error("create the directory", directory))?;
        self.change(|records| {
            // Another node has created the file.
            if !records.is_empty() {
                return Ok(None);
            }
            let name = FIRST_KEY.parse().expect("it is a name");
            let new = NewKey { name, scopes: Scopes::READ_WRITE, rate_limit: None, expires: None };
            let line = format!("{}\n", self.add(records, new, None, now)?.key.reveal());
            // The secret is written first: after a kill in between, the next startup finds no key file and tries again.
            let path = directory.join(FIRST_KEY);
            private_files::replace(&path, line.as_bytes()).map_err(io_error("write", &path))?;
            Ok(Some(path))
        })
    }

    /// Issues a key with the owner, name, scopes and rate limit of another, which stays valid for `overlap`. The new key
    /// expires at `expires`, or else after the original lifetime of the replaced one. A revoked or expired key can be
    /// rotated, but does not become valid again. Also returns the replaced key.
    pub fn rotate(
        &self,
        id: &KeyId,
        overlap: TimeDelta,
        expires: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<(Issued, KeyRecord), KeyFileError> {
        self.change_one(id, |records, index| {
            let replaced = records[index].clone();
            if replaced.overlap_until.is_some() {
                let newest = records.iter().rfind(|record| record.owner == replaced.owner);
                return Err(KeyFileError::Unusable(format!(
                    "key {id} was already rotated: rotate {}, the owner's newest key",
                    newest.unwrap_or(&replaced).id()
                )));
            }
            let lifetime = replaced.expires.map(|end| end - replaced.created);
            let new = NewKey {
                name: replaced.name,
                scopes: replaced.scopes,
                rate_limit: replaced.rate_limit,
                expires: expires.or_else(|| lifetime.map(|lifetime| now + lifetime)),
            };
            let issued = self.add(records, new, Some(replaced.owner), now)?;
            records[index].overlap_until = Some((now + overlap).trunc_subsecs(0));
            Ok((issued, records[index].clone()))
        })
    }

    /// Revokes a key permanently. Also returns whether this has changed anything.
    pub fn revoke(&self, id: &KeyId, now: DateTime<Utc>) -> Result<(KeyRecord, bool), KeyFileError> {
        self.change_one(id, |records, index| {
            let is_new = records[index].revoked.is_none();
            records[index].revoked.get_or_insert(now.trunc_subsecs(0));
            Ok((records[index].clone(), is_new))
        })
    }

    /// Changes the keys with [`change`](Self::change), and passes the index of the key with this id.
    fn change_one<T>(
        &self,
        id: &KeyId,
        change: impl FnOnce(&mut Vec<KeyRecord>, usize) -> Result<T, KeyFileError>,
    ) -> Result<T, KeyFileError> {
        // Fail early if the file is missing: its directory, which holds the lock, may be missing too.
        self.read()?;
        self.change(|records| {
            let index = records.iter().position(|record| record.id() == *id);
            change(records, index.ok_or_else(|| KeyFileError::UnknownKey(self.path.clone()))?)
        })
    }

    /// Changes the keys. Locks the key file and the files that belong to it against changes by other processes; reading
    /// needs no lock. A missing file has no keys.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<KeyRecord>) -> Result<T, KeyFileError>,
    ) -> Result<T, KeyFileError> {
        let target = Self::at(self.target());
        let path = private_files::with_suffix(&target.path, ".lock");
        let _lock = private_files::lock(&path, Self::LOCK_TIMEOUT).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => KeyFileError::Unusable(format!(
                "another process holds the lock {}: try again when that process has finished",
                path.display()
            )),
            _ => io_error("lock", &path)(error),
        })?;
        let before = match target.keys() {
            Err(KeyFileError::Missing(_)) => Vec::new(),
            keys => keys?,
        };
        // Storing the keys of other users would protect and activate them.
        target.check_protection()?;
        let mut records = before.clone();
        let outcome = change(&mut records)?;
        if records != before {
            let text = document::write(&records);
            private_files::replace(&target.path, text.as_bytes()).map_err(io_error("write", &target.path))?;
        }
        Ok(outcome)
    }

    /// Adds a key of `owner`, or of a new owner.
    fn add(
        &self,
        records: &mut Vec<KeyRecord>,
        new: NewKey,
        owner: Option<OwnerId>,
        now: DateTime<Utc>,
    ) -> Result<Issued, KeyFileError> {
        if records.len() >= Self::KEYS_MAX {
            return Err(KeyFileError::Unusable(format!(
                "the key file {} already holds {} keys, the maximum: delete the entries of revoked or expired keys from it",
                self.path.display(),
                Self::KEYS_MAX
            )));
        }
        let (key, hash, id) = loop {
            // Without the random number generator of the system, a key could be guessed.
            let key = ApiKey::generate().map_err(|error| {
                KeyFileError::Unusable(format!(
                    "the system's random number generator failed: {error}; try again"
                ))
            })?;
            let (hash, id) = (key.hash(), key.hash().id());
            // The id of a deleted entry may still be an owner.
            if records.iter().all(|other| other.id() != id && other.owner != id.as_owner()) {
                break (key, hash, id);
            }
        };
        let record = KeyRecord {
            hash,
            owner: owner.unwrap_or_else(|| id.as_owner()),
            name: new.name,
            scopes: new.scopes,
            rate_limit: new.rate_limit,
            // The file keeps whole seconds.
            created: now.trunc_subsecs(0),
            expires: new.expires.map(|end| end.trunc_subsecs(0)),
            overlap_until: None,
            revoked: None,
        };
        records.push(record.clone());
        Ok(Issued { key, record })
    }

    /// Returns the id of a key, given its id, its name or the key. An active key has precedence over others of the same name.
    pub fn id_of(&self, text: &str, now: DateTime<Utc>) -> Result<KeyId, KeyFileError> {
        // The finder of a leaked key does not know its id.
        if let Some(hash) = KeyHash::of_presented(text) {
            return Ok(hash.id());
        }
        if is_id(text) {
            return Ok(KeyId(text.into()));
        }
        let mut named = self.named(text)?;
        if named.iter().any(|record| record.state(now) == KeyState::Active) {
            named.retain(|record| record.state(now) == KeyState::Active);
        }
        only(named.iter().map(KeyRecord::id).collect(), "ids")
    }

    /// Returns the owner that is named by its id, or by the name of its keys. An id need not be in the file.
    pub fn owner_of(&self, text: &str) -> Result<OwnerId, KeyFileError> {
        if is_id(text) {
            return Ok(OwnerId(text.into()));
        }
        let mut owners: Vec<_> = self.named(text)?.into_iter().map(|record| record.owner).collect();
        owners.sort();
        owners.dedup();
        only(owners, "owners")
    }

    /// Every key with this name.
    fn named(&self, name: &str) -> Result<Vec<KeyRecord>, KeyFileError> {
        let mut records = self.keys()?;
        records.retain(|record| record.name.as_str() == name);
        if records.is_empty() { Err(KeyFileError::UnknownKey(self.path.clone())) } else { Ok(records) }
    }

    /// The file behind all links.
    fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }
}

/// Returns the only item, or an error that lists all.
fn only<T: Display>(mut found: Vec<T>, what: &str) -> Result<T, KeyFileError> {
    if found.len() > 1 {
        let all = found.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
        return Err(KeyFileError::Unusable(format!(
            "several keys have this name; use one of their {what} instead: {all}"
        )));
    }
    Ok(found.pop().expect("at least one was found"))
}

fn io_error(action: &str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    move |cause| {
        let path = path.display();
        KeyFileError::Unusable(format!("cannot {action} {path}: {cause}; check the path and its permissions"))
    }
}

#[cfg(test)]
mod tests;
