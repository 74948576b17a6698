//! Issues, rotates and revokes keys.

use std::{fmt::Display, fs, path::PathBuf};

use application::OwnerId;
use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};

use super::{
    file::{KeyFile, KeyFileError, LockedKeyFile, io_error},
    key::{ApiKey, KeyHash, is_id},
    record::{KeyName, KeyRecord, KeyState},
};
use crate::{
    access::{KeyId, RateLimit, Scopes},
    private_files,
};

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
    /// The key file, if it did not exist before.
    pub new_file: Option<PathBuf>,
}

impl KeyFile {
    /// Adds a new key. Creates the file if it is missing, but not its directory: a path with a missing directory is
    /// more likely a typo.
    pub fn issue(&self, new: NewKey, now: DateTime<Utc>) -> Result<Issued, KeyFileError> {
        let directory = private_files::directory_of(self.path());
        if !directory.is_dir() {
            return Err(KeyFileError::Unusable(format!(
                "the directory {} does not exist: create it, or correct the path of the key file",
                directory.display()
            )));
        }
        let lock = self.lock()?;
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

    /// Creates the key file with one key that may read and write, unless the file exists, and writes the secret to a
    /// separate file next to it. Returns the path of that file, or `None` if the key file existed.
    pub fn issue_first(&self, now: DateTime<Utc>) -> Result<Option<PathBuf>, KeyFileError> {
        // Also checked before locking, because an existing file may be on a read-only disk.
        if self.exists() {
            return Ok(None);
        }
        let directory = private_files::directory_of(self.path());
        private_files::create_directories(directory).map_err(io_error("create the directory", directory))?;
        let lock = self.lock()?;
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
        // The secret is written first: after a kill in between, the next startup finds no key file and tries again.
        let path = self.first_key_path();
        let line = format!("{}\n", key.reveal());
        private_files::replace(&path, line.as_bytes()).map_err(io_error("write", &path))?;
        lock.store(&[record])?;
        Ok(Some(path))
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
        if named.len() > 1 && named.iter().any(|record| record.state(now) == KeyState::Active) {
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
        if records.is_empty() { Err(KeyFileError::UnknownKey(self.path().to_owned())) } else { Ok(records) }
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
        let (lock, mut records, index) = self.lock_with(id)?;
        let replaced = &records[index];
        if replaced.overlap_until.is_some() {
            let newest = records.iter().rfind(|record| record.owner == replaced.owner);
            return Err(KeyFileError::Unusable(format!(
                "key {id} was already rotated: rotate {}, the owner's newest key",
                newest.unwrap_or(replaced).id()
            )));
        }
        let lifetime = replaced.expires.map(|end| end - replaced.created);
        let new = NewKey {
            name: replaced.name.clone(),
            scopes: replaced.scopes,
            rate_limit: replaced.rate_limit,
            expires: expires.or_else(|| lifetime.map(|lifetime| now + lifetime)),
        };
        let issued = self.generate(new, Some(replaced.owner.clone()), &records, now)?;
        records[index].overlap_until = Some((now + overlap).trunc_subsecs(0));
        let replaced = records[index].clone();
        records.push(issued.record.clone());
        lock.store(&records)?;
        Ok((issued, replaced))
    }

    /// Revokes a key permanently. Also returns whether this has changed anything.
    pub fn revoke(&self, id: &KeyId, now: DateTime<Utc>) -> Result<(KeyRecord, bool), KeyFileError> {
        let (lock, mut records, index) = self.lock_with(id)?;
        let record = &mut records[index];
        let changed = record.revoked.is_none();
        record.revoked.get_or_insert(now.trunc_subsecs(0));
        let revoked = record.clone();
        if changed {
            lock.store(&records)?;
        }
        Ok((revoked, changed))
    }

    /// Locks the file, and returns its keys and the index of the key with this id.
    fn lock_with(&self, id: &KeyId) -> Result<(LockedKeyFile, Vec<KeyRecord>, usize), KeyFileError> {
        // Fail early if the file is missing: its directory, which holds the lock, may be missing too.
        self.read()?;
        let lock = self.lock()?;
        let records = lock.keys()?;
        let index = records.iter().position(|record| record.id() == *id);
        let index = index.ok_or_else(|| KeyFileError::UnknownKey(self.path().to_owned()))?;
        Ok((lock, records, index))
    }

    /// Generates a key for `owner`, or for a new owner.
    pub(super) fn generate(
        &self,
        new: NewKey,
        owner: Option<OwnerId>,
        others: &[KeyRecord],
        now: DateTime<Utc>,
    ) -> Result<Issued, KeyFileError> {
        if others.len() >= Self::KEYS_MAX {
            return Err(KeyFileError::Unusable(format!(
                "the key file {} already holds {} keys, the maximum: delete the entries of revoked or expired keys from it",
                self.path().display(),
                Self::KEYS_MAX
            )));
        }
        let (key, hash) = loop {
            // Without the random number generator of the system, a key could be guessed.
            let key = ApiKey::generate().map_err(|error| {
                KeyFileError::Unusable(format!(
                    "the system's random number generator failed: {error}; try again"
                ))
            })?;
            let (hash, id) = (key.hash(), key.hash().id());
            // The id of a deleted entry may still be an owner.
            if others.iter().all(|other| other.id() != id && other.owner != id.as_owner()) {
                break (key, hash);
            }
        };
        let NewKey { name, scopes, rate_limit, expires } = new;
        let record = KeyRecord {
            hash,
            owner: owner.unwrap_or_else(|| hash.id().as_owner()),
            name,
            scopes,
            rate_limit,
            // The file keeps whole seconds.
            created: now.trunc_subsecs(0),
            expires: expires.map(|end| end.trunc_subsecs(0)),
            overlap_until: None,
            revoked: None,
        };
        Ok(Issued { key, record, new_file: None })
    }

    /// Whether anything exists at the path. Even an unreadable file must not be replaced.
    fn exists(&self) -> bool {
        fs::symlink_metadata(self.path()).is_ok()
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

#[cfg(test)]
mod tests;
