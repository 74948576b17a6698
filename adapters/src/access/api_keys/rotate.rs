//! Rotates keys: a new key for the same owner replaces the old one, and both are valid for a while.

use application::KeyId;
use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};

use super::{
    file::{KeyFile, KeyFileError},
    issue::{Issued, NewKey},
    record::KeyRecord,
};

/// How a key is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// How long the replaced key stays valid.
    pub overlap: TimeDelta,
    /// When the new key expires. `None`: after the original lifetime of the replaced key.
    pub expires: Option<DateTime<Utc>>,
}

/// A new key and the key that it replaces.
#[derive(Debug)]
pub struct Rotated {
    /// The new key.
    pub issued: Issued,
    /// The replaced key, with the end of the overlap.
    pub replaced: KeyRecord,
}

impl KeyFile {
    /// Issues a key with the owner, name, scopes and rate limit of another, which stays valid until the overlap ends. A
    /// revoked or expired key can be rotated, but does not become valid again.
    pub fn rotate(
        &self,
        id: &KeyId,
        rotation: Rotation,
        now: DateTime<Utc>,
    ) -> Result<Rotated, KeyFileError> {
        // Fail early if the file is missing: its directory, which holds the lock, may be missing too.
        self.read()?;
        let lock = self.lock(Self::LOCK_TIMEOUT)?;
        let mut records = lock.keys()?;
        let Some(index) = records.iter().position(|record| record.id() == *id) else {
            return Err(KeyFileError::UnknownKey(records));
        };
        let replaced = &records[index];
        if replaced.overlap_until.is_some() {
            let newest = records.iter().rfind(|record| record.owner == replaced.owner);
            let newest = newest.map_or_else(|| replaced.id(), KeyRecord::id);
            return Err(KeyFileError::Replaced(replaced.id(), newest));
        }
        let lifetime = replaced.expires.map(|end| end - replaced.created);
        let new = NewKey {
            name: replaced.name.clone(),
            scopes: replaced.scopes,
            rate_limit: replaced.rate_limit,
            expires: rotation.expires.or_else(|| lifetime.map(|lifetime| now + lifetime)),
        };
        let issued = self.generate(new, Some(replaced.owner.clone()), &records, now)?;
        records[index].overlap_until = Some((now + rotation.overlap).trunc_subsecs(0));
        let replaced = records[index].clone();
        records.push(issued.record.clone());
        lock.store(&records)?;
        Ok(Rotated { issued, replaced })
    }
}

#[cfg(test)]
mod tests;
