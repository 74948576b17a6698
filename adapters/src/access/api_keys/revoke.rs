//! Revokes keys.

use application::KeyId;
use chrono::{DateTime, SubsecRound as _, Utc};

use super::{
    file::{KeyFile, KeyFileError},
    record::KeyRecord,
};

/// The outcome of revoking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// The key is revoked from now on.
    Now(KeyRecord),
    /// It was revoked before; nothing has changed.
    Before(KeyRecord),
}

impl KeyFile {
    /// Revokes a key permanently.
    pub fn revoke(&self, id: &KeyId, now: DateTime<Utc>) -> Result<Revoked, KeyFileError> {
        // Fail early if the file is missing: its directory, which holds the lock, may be missing too.
        self.read()?;
        let lock = self.lock(Self::LOCK_TIMEOUT)?;
        let mut records = lock.keys()?;
        let Some(record) = records.iter_mut().find(|record| record.id() == *id) else {
            return Err(KeyFileError::UnknownKey(records));
        };
        if record.revoked.is_some() {
            return Ok(Revoked::Before(record.clone()));
        }
        record.revoked = Some(now.trunc_subsecs(0));
        let revoked = record.clone();
        lock.store(&records)?;
        Ok(Revoked::Now(revoked))
    }
}
