//! Issuing a key: the first one at the first start, and others when an operator asks for them.

use std::{fs, path::PathBuf};

use application::KeyId;
use chrono::{DateTime, SubsecRound as _, Utc};

use super::{
    file::{KeyFile, KeyFileError, io_error},
    key::ApiKey,
    record::{KeyName, KeyRecord, KeyState},
};
use crate::access::{RateLimit, Scopes};
use crate::private_files;

/// The wanted properties of a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// What the operator calls it.
    pub name: KeyName,
    /// What it may do.
    pub scopes: Scopes,
    /// How many requests it may send, if that is limited.
    pub rate_limit: Option<RateLimit>,
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
    /// The key file, if it did not exist before.
    pub new_file: Option<PathBuf>,
}

impl KeyFile {
    /// Adds a new key. Creates the file if it is missing, but not its directory: a path in a directory that does not exist
    /// is more likely to be mistyped than meant.
    pub fn issue(&self, new: NewKey, now: DateTime<Utc>) -> Result<Issued, KeyFileError> {
        let directory = private_files::directory_of(self.path());
        if !directory.is_dir() {
            return Err(KeyFileError::NoDirectory(directory.to_owned()));
        }
        let lock = self.lock(Self::LOCK_TIMEOUT)?;
        let (mut records, is_new) = match lock.keys() {
            Err(KeyFileError::Missing(_)) => (Vec::new(), true),
            found => (found?, false),
        };
        let mut issued = self.generate(new, None, &records, now)?;
        records.push(issued.record.clone());
        lock.store(&records)?;
        issued.new_file = is_new.then(|| self.target());
        Ok(issued)
    }

    /// Creates the file with one key that may read and write, unless the file exists, and writes the secret to a
    /// file of its own beside it. Returns the path of that file, or `None` if there was a key file already.
    pub fn issue_first(&self, now: DateTime<Utc>) -> Result<Option<PathBuf>, KeyFileError> {
        // Checked before locking too, because an existing file may lie where nothing can be written.
        if self.exists() {
            return Ok(None);
        }
        let directory = private_files::directory_of(self.path());
        private_files::create_directories(directory).map_err(io_error("create the directory", directory))?;
        let lock = self.lock(Self::LOCK_TIMEOUT)?;
        if self.exists() {
            return Ok(None);
        }
        let new = NewKey {
            name: KeyName::of_the_first_key(),
            scopes: Scopes::READ_WRITE,
            rate_limit: None,
            expires: None,
        };
        let Issued { key, record, .. } = self.generate(new, None, &[], now)?;
        // The secret is written first: after a kill in between, the next start finds no key file and starts over.
        let path = self.first_key();
        let line = format!("{}\n", key.reveal());
        private_files::replace(&path, line.as_bytes()).map_err(io_error("write", &path))?;
        lock.store(&[record])?;
        Ok(Some(path))
    }

    /// Generates a key for `owner`, or for an owner of its own.
    pub(super) fn generate(
        &self,
        new: NewKey,
        owner: Option<KeyId>,
        others: &[KeyRecord],
        now: DateTime<Utc>,
    ) -> Result<Issued, KeyFileError> {
        if others.len() >= Self::KEYS_MAX {
            return Err(KeyFileError::Full(self.path().to_owned()));
        }
        let is_namesake = |other: &&KeyRecord| other.name == new.name && other.state(now) == KeyState::Active;
        let namesakes = others.iter().filter(is_namesake).count();
        let (key, hash) = loop {
            let key = ApiKey::generate().map_err(KeyFileError::NoRandomness)?;
            let (hash, id) = (key.hash(), key.hash().id());
            // The id of a deleted entry may still be an owner.
            if others.iter().all(|other| other.id() != id && other.owner != id) {
                break (key, hash);
            }
        };
        let NewKey { name, scopes, rate_limit, expires } = new;
        let record = KeyRecord {
            hash,
            owner: owner.unwrap_or_else(|| hash.id()),
            name,
            scopes,
            rate_limit,
            // The file keeps whole seconds.
            created: now.trunc_subsecs(0),
            expires: expires.map(|end| end.trunc_subsecs(0)),
            overlap_until: None,
            revoked: None,
        };
        Ok(Issued { key, record, namesakes, new_file: None })
    }

    /// Whether anything exists at the path. Even what cannot be read must not be replaced.
    fn exists(&self) -> bool {
        fs::symlink_metadata(self.path()).is_ok()
    }
}
