//! API keys. Their hashes are stored in one small file that may change while the service runs.
//!
//! Reading order: [`ApiKeys`] (authenticates every request), `file` (the key file), `lifecycle` (its changes), `record`
//! (one entry), `expiry` (keys that expire), `key` (the secret), `document` (the TOML text).

mod changes;
mod document;
mod expiry;
mod file;
mod key;
mod lifecycle;
mod record;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use application::ports::Clock;
use chrono::{DateTime, Utc};
use data_encoding::HEXLOWER;
use parking_lot::{Mutex, RwLock};
use tokio::{
    task,
    time::{self, MissedTickBehavior},
};

use self::key::ID_BYTES;
pub use self::{
    document::KEY_FILE_VERSION,
    file::{KeyFile, KeyFileError},
    key::{ApiKey, KeyHash},
    lifecycle::{Issued, NewKey},
    record::{KeyName, KeyRecord, KeyState},
};
use crate::{
    access::{Allowance, KeyId, Principal, RateLimit, RejectedKey, Scopes},
    log_once::LogOnce,
};

/// The active keys. They follow the key file. While it is broken or missing, the previously loaded keys stay active.
pub struct ApiKeys {
    file: KeyFile,
    clock: Arc<dyn Clock>,
    /// The rate limit of keys without their own limit.
    rate_limit: Option<RateLimit>,
    keys: RwLock<ActiveKeys>,
    loaded: Mutex<Loaded>,
    /// Whether the last attempt to read the file failed.
    is_unusable: AtomicBool,
}

/// The keys of the last loaded file, by id.
type ActiveKeys = BTreeMap<[u8; ID_BYTES], Arc<KeyEntry>>;

/// A key of the file with its usage.
struct KeyEntry {
    record: KeyRecord,
    principal: Arc<Principal>,
    /// Whether the key was seen to be expired. It stays expired if the clock goes back.
    expired: AtomicBool,
    /// Whether the expiry was announced in the service log.
    announced: AtomicBool,
}

/// The last loaded key file.
#[derive(Default)]
struct Loaded {
    /// The content that is active. Compared as a whole: modification times are too coarse and can be set.
    content: Vec<u8>,
    log: LogOnce,
    /// Whether the lack of active keys was reported.
    lacks_keys: bool,
}

impl ApiKeys {
    /// How often the file is read. A change must take effect within two seconds, even on a busy machine.
    pub const RELOAD_INTERVAL: Duration = Duration::from_millis(500);

    /// Loads the keys from the file. If it does not exist, there are none until [`KeyFile::issue_first`] creates it.
    /// `rate_limit` applies to keys without their own limit.
    pub fn open(
        file: KeyFile,
        clock: Arc<dyn Clock>,
        rate_limit: Option<RateLimit>,
    ) -> Result<Arc<Self>, KeyFileError> {
        let keys = Self {
            file,
            clock,
            rate_limit,
            keys: RwLock::default(),
            loaded: Mutex::default(),
            is_unusable: AtomicBool::new(false),
        };
        let content = match keys.file.read() {
            Err(KeyFileError::Missing(_)) => return Ok(Arc::new(keys)),
            content => content?,
        };
        keys.activate(&content)?;
        let mut loaded = keys.loaded.lock();
        loaded.content = content;
        keys.report(&mut loaded);
        drop(loaded);
        Ok(Arc::new(keys))
    }

    /// Whether a key file was loaded.
    pub fn is_loaded(&self) -> bool {
        // A valid file has at least a version.
        !self.loaded.lock().content.is_empty()
    }

    /// Reloads the file at intervals, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        let mut interval = time::interval(Self::RELOAD_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let keys = self.clone();
            // A runtime that shuts down cancels the work, which is not an error.
            if let Err(ended) = task::spawn_blocking(move || drop(keys.reload())).await
                && ended.is_panic()
            {
                tracing::error!(
                    target: "petstore::keys",
                    error = %ended,
                    "API key task panicked; please report this"
                );
            }
        }
    }

    /// Reads the file now, and reports keys that expire. After an error, the loaded keys stay active. Blocks on the disk.
    pub fn reload(&self) -> Result<(), KeyFileError> {
        let mut loaded = self.loaded.lock();
        let has_keys = !loaded.content.is_empty();
        let outcome = match self.load_changes(&mut loaded.content) {
            // The first key has not been issued yet.
            Err(KeyFileError::Missing(_)) if !has_keys => return Ok(()),
            outcome => outcome,
        };
        let outcome = outcome.map_err(|error| match error {
            // Issuing a key, as the error advises, would create a file with only that key.
            KeyFileError::Missing(path) => {
                KeyFileError::Unusable(format!("the key file {} was deleted; restore it", path.display()))
            }
            error => error,
        });
        self.is_unusable.store(outcome.is_err(), Relaxed);
        if loaded.log.is_change(outcome.as_ref().err()) {
            match &outcome {
                Ok(()) => tracing::info!(target: "petstore::keys", "key file usable again"),
                Err(error) => tracing::warn!(
                    target: "petstore::keys",
                    %error,
                    "cannot reload the key file; the loaded keys stay active"
                ),
            }
        }
        self.report(&mut loaded);
        outcome
    }

    /// Activates the content of the file if it differs from `active`. The protection is checked even without a change:
    /// other users could change the file next.
    fn load_changes(&self, active: &mut Vec<u8>) -> Result<(), KeyFileError> {
        let content = self.file.read()?;
        if content == *active {
            return self.file.check_protection();
        }
        let before = self.keys.read().clone();
        let count = self.activate(&content)?;
        changes::log(&before, &self.keys.read());
        *active = content;
        tracing::info!(target: "petstore::keys", active = count, "key file reloaded");
        Ok(())
    }

    /// Replaces the set of keys, and returns the number of active ones. An error changes nothing.
    fn activate(&self, content: &[u8]) -> Result<usize, KeyFileError> {
        let records = self.file.parse(content)?;
        self.file.check_protection()?;
        let now = self.clock.now();
        let mut keys = self.keys.write();
        *keys = records
            .into_iter()
            .map(|record| {
                let before = keys.get(&record.hash.id_bytes()).map(|entry| &**entry);
                (record.hash.id_bytes(), Arc::new(KeyEntry::new(record, self.rate_limit, before)))
            })
            .collect();
        Ok(keys.values().filter(|entry| entry.state(now) == KeyState::Active).count())
    }

    /// Reports keys that expire soon, and the lack of active keys.
    fn report(&self, loaded: &mut Loaded) {
        let (keys, now) = (self.keys.read(), self.clock.now());
        // Also notes that a key has expired, even if it is not used.
        let active = keys.values().filter(|entry| entry.state(now) == KeyState::Active).count();
        expiry::report(&keys, now);
        let lacks_keys = active == 0;
        if lacks_keys && !loaded.lacks_keys {
            tracing::warn!(
                target: "petstore::keys",
                file = %self.file.path().display(),
                "no API key is active, so every request under /v1 gets 401; restore the key file if it was deleted or \
                 replaced, otherwise rotate or issue a key"
            );
        }
        loaded.lacks_keys = lacks_keys;
    }

    /// Returns the principal of this key if it is valid now: known, not revoked, not expired.
    pub fn authenticate(&self, key: &str) -> Result<Arc<Principal>, RejectedKey> {
        let (keys, hash) = (self.keys.read(), KeyHash::of_text(key));
        let entry = keys.get(&hash.id_bytes()).filter(|entry| entry.record.hash == hash);
        entry.ok_or(RejectedKey::Unknown)?.check(self.clock.now()).cloned()
    }

    /// Returns the scopes that a key has now, by its id, or rejects it if it is no longer valid. Called again before a write
    /// and during long responses.
    pub fn check(&self, id: &KeyId) -> Result<Scopes, RejectedKey> {
        let keys = self.keys.read();
        let id = HEXLOWER.decode(id.0.as_bytes()).ok().and_then(|id| id.try_into().ok());
        let entry = id.and_then(|id: [u8; ID_BYTES]| keys.get(&id)).ok_or(RejectedKey::Unknown)?;
        entry.check(self.clock.now()).map(|principal| principal.scopes)
    }

    /// The principals of all keys, for metrics.
    pub fn principals(&self) -> Vec<Arc<Principal>> {
        self.keys.read().values().map(|entry| entry.principal.clone()).collect()
    }

    /// The next expiry of each key name, for metrics. Names without a key that expires are absent.
    pub fn expiries(&self) -> Vec<(String, DateTime<Utc>)> {
        expiry::by_name(&self.keys.read(), self.clock.now())
    }

    /// Whether the key file can be read, so that changes of it take effect, for metrics.
    pub fn is_usable(&self) -> bool {
        !self.is_unusable.load(Relaxed)
    }
}

impl KeyEntry {
    /// Keeps the usage of the entry that it replaces.
    fn new(record: KeyRecord, rate_limit: Option<RateLimit>, before: Option<&Self>) -> Self {
        let allowance = record.rate_limit.or(rate_limit).map(|limit| {
            Allowance::continued(before.and_then(|entry| entry.principal.allowance.as_ref()), limit)
        });
        let usage = before.map(|entry| entry.principal.usage.clone()).unwrap_or_default();
        let principal = Principal {
            id: record.id(),
            owner: record.owner.clone(),
            name: record.name.to_string(),
            scopes: record.scopes,
            allowance,
            usage,
        };
        // A changed end is a decision of the operator.
        let same_end = before.filter(|entry| entry.record.end() == record.end());
        let kept = |flag: fn(&Self) -> &AtomicBool| {
            AtomicBool::new(same_end.is_some_and(|entry| flag(entry).load(Relaxed)))
        };
        Self {
            expired: kept(|entry| &entry.expired),
            announced: kept(|entry| &entry.announced),
            record,
            principal: Arc::new(principal),
        }
    }

    /// The state of the key at the time `now`. A key that has expired stays expired.
    fn state(&self, now: DateTime<Utc>) -> KeyState {
        match self.record.state(now) {
            KeyState::Active if self.expired.load(Relaxed) => KeyState::Expired,
            KeyState::Expired => {
                self.expired.store(true, Relaxed);
                KeyState::Expired
            }
            state => state,
        }
    }

    /// Rejects a key that is no longer valid. Called at every request, because a key expires without a change of the
    /// file.
    fn check(&self, now: DateTime<Utc>) -> Result<&Arc<Principal>, RejectedKey> {
        match self.state(now) {
            KeyState::Active => Ok(&self.principal),
            KeyState::Expired => Err(RejectedKey::Expired(self.record.id(), self.principal.name.clone())),
            KeyState::Revoked => Err(RejectedKey::Revoked(self.record.id(), self.principal.name.clone())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
