//! API keys. Their hashes are stored in one small file that may change while the service runs.
//!
//! Reading order: [`ApiKeys`] (authenticates every request), `file` (the key file and its changes), `key` (the secret
//! and its entry in the file), `document` (the TOML text).

mod document;
mod file;
mod key;

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use application::ports::Clock;
use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::{Mutex, RwLock};
use tokio::{task, time};

pub(crate) use self::key::KEY_PREFIX;
pub use self::{
    document::KEY_FILE_VERSION,
    file::{Issued, KeyFile, KeyFileError, NewKey},
    key::{ApiKey, KeyHash, KeyName, KeyRecord, KeyState},
};
use crate::{
    access::{Allowance, KeyId, Principal, RateLimit, RejectedKey, Scopes},
    log_once::LogOnce,
};

/// How long before its expiry a key is reported in the service log.
const EXPIRY_NOTICE: TimeDelta = TimeDelta::days(7);

/// The active keys. They follow the key file. While it is broken or missing, the previously loaded keys stay active.
pub struct ApiKeys {
    file: KeyFile,
    clock: Arc<dyn Clock>,
    /// The latest time that was seen, in microseconds since 1970.
    latest: AtomicI64,
    /// The rate limit of keys without their own limit.
    rate_limit: Option<RateLimit>,
    keys: RwLock<BTreeMap<KeyId, KeyEntry>>,
    loaded: Mutex<Loaded>,
    /// Whether the last attempt to read the file failed.
    is_unusable: AtomicBool,
}

/// A key of the file with its usage.
struct KeyEntry {
    record: KeyRecord,
    principal: Arc<Principal>,
}

/// The last loaded key file.
#[derive(Default)]
struct Loaded {
    /// The content that is active. Compared as a whole: modification times are too coarse and can be set.
    content: Option<Vec<u8>>,
    error: LogOnce,
    /// The keys whose expiry was reported, with its time.
    reported: HashSet<(KeyId, DateTime<Utc>)>,
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
            latest: AtomicI64::default(),
            rate_limit,
            keys: RwLock::default(),
            loaded: Mutex::default(),
            is_unusable: AtomicBool::new(false),
        };
        keys.load(&mut keys.loaded.lock())?;
        keys.report(&mut keys.loaded.lock());
        Ok(Arc::new(keys))
    }

    /// The time, which never goes back: a key that has expired stays expired.
    fn now(&self) -> DateTime<Utc> {
        let now = self.clock.now();
        let latest = self.latest.fetch_max(now.timestamp_micros(), Relaxed);
        DateTime::from_timestamp_micros(latest).map_or(now, |latest| latest.max(now))
    }

    /// Whether a key file was loaded.
    pub fn is_loaded(&self) -> bool {
        self.loaded.lock().content.is_some()
    }

    /// Reloads the file at intervals, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        loop {
            time::sleep(Self::RELOAD_INTERVAL).await;
            let keys = self.clone();
            // Fails only when the runtime shuts down.
            let _ = task::spawn_blocking(move || drop(keys.reload())).await;
        }
    }

    /// Reads the file now, and reports keys that expire. After an error, the loaded keys stay active. Blocks on the disk.
    pub fn reload(&self) -> Result<(), KeyFileError> {
        let mut loaded = self.loaded.lock();
        let outcome = self.load(&mut loaded);
        self.is_unusable.store(outcome.is_err(), Relaxed);
        if loaded.error.is_change(outcome.as_ref().err()) {
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

    /// Activates the keys in the file if it has changed. An error changes nothing.
    fn load(&self, loaded: &mut Loaded) -> Result<(), KeyFileError> {
        let content = match self.file.read() {
            // The first key has not been issued yet.
            Err(KeyFileError::Missing(_)) if loaded.content.is_none() => return Ok(()),
            // Issuing a key, as that error advises, would create a file with only that key.
            Err(KeyFileError::Missing(path)) => {
                let reason = format!("the key file {} was deleted; restore it", path.display());
                return Err(KeyFileError::Unusable(reason));
            }
            content => content?,
        };
        // Checked even without a change: other users could change the file next.
        self.file.check_protection()?;
        if loaded.content.as_ref() == Some(&content) {
            return Ok(());
        }
        let records = self.file.parse(&content)?;
        let keys = self.keys.read();
        let changed = records.into_iter().map(|record| {
            let before = keys.get(&record.id());
            let entry = KeyEntry::new(record, self.rate_limit, before);
            (entry.principal.id.clone(), entry)
        });
        let changed = changed.collect();
        drop(keys);
        // Requests wait for the write lock, so it is held only for this.
        let before = mem::replace(&mut *self.keys.write(), changed);
        if loaded.content.is_some() {
            let (keys, now) = (self.keys.read(), self.now());
            log_changes(&before, &keys);
            let active = keys.values().filter(|entry| entry.is_active(now)).count();
            tracing::info!(target: "petstore::keys", active, "key file reloaded");
        }
        loaded.content = Some(content);
        Ok(())
    }

    /// Reports each key that expires soon once, and the lack of active keys.
    fn report(&self, loaded: &mut Loaded) {
        let (keys, now) = (self.keys.read(), self.now());
        for (id, entry) in &*keys {
            if let Some(expires) = entry.expiry(now)
                && expires - now <= EXPIRY_NOTICE
                && loaded.reported.insert((id.clone(), expires))
            {
                tracing::warn!(
                    target: "petstore::keys",
                    key = %id, key_name = %entry.record.name, ?expires,
                    "API key expires soon"
                );
            }
        }
        let lacks_keys = loaded.content.is_some() && !keys.values().any(|entry| entry.is_active(now));
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
        let entry = keys.get(&hash.id()).filter(|entry| entry.record.hash == hash);
        entry.ok_or(RejectedKey::Unknown)?.check(self.now()).cloned()
    }

    /// Returns the scopes that a key has now, by its id, or rejects it if it is no longer valid. Called again before a write
    /// and during long responses.
    pub fn check(&self, id: &KeyId) -> Result<Scopes, RejectedKey> {
        let keys = self.keys.read();
        let entry = keys.get(id).ok_or(RejectedKey::Unknown)?;
        entry.check(self.now()).map(|principal| principal.scopes)
    }

    /// The principals of all keys, for metrics.
    pub fn principals(&self) -> Vec<Arc<Principal>> {
        self.keys.read().values().map(|entry| entry.principal.clone()).collect()
    }

    /// The next expiry of each key name, for metrics. Names without a key that expires are absent.
    pub fn expiries(&self) -> Vec<(String, DateTime<Utc>)> {
        let (keys, now) = (self.keys.read(), self.now());
        let expiry = |entry: &KeyEntry| Some((entry.principal.name.clone(), entry.expiry(now)?));
        let mut expiries: Vec<_> = keys.values().filter_map(expiry).collect();
        expiries.sort();
        expiries.dedup_by(|later, next| later.0 == next.0);
        expiries
    }

    /// Whether the key file can be read, so that changes of it take effect, for metrics.
    pub fn is_usable(&self) -> bool {
        !self.is_unusable.load(Relaxed)
    }
}

impl KeyEntry {
    /// Keeps the usage of the entry that it replaces.
    fn new(record: KeyRecord, rate_limit: Option<RateLimit>, before: Option<&Self>) -> Self {
        let before = before.map(|entry| &entry.principal);
        let allowance = record
            .rate_limit
            .or(rate_limit)
            .map(|limit| Allowance::continued(before.and_then(|before| before.allowance.as_ref()), limit));
        let principal = Principal {
            id: record.id(),
            owner: record.owner.clone(),
            name: record.name.to_string(),
            scopes: record.scopes,
            allowance,
            usage: before.map(|before| before.usage.clone()).unwrap_or_default(),
        };
        Self { record, principal: Arc::new(principal) }
    }

    fn is_active(&self, now: DateTime<Utc>) -> bool {
        self.record.state(now) == KeyState::Active
    }

    /// When an active key expires. `None` for a key that was rotated: its end is intended.
    fn expiry(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.record.expires.filter(|_| self.is_active(now) && self.record.overlap_until.is_none())
    }

    /// Rejects a key that is no longer valid. Called at every request, because keys expire.
    fn check(&self, now: DateTime<Utc>) -> Result<&Arc<Principal>, RejectedKey> {
        let Principal { id, name, .. } = &*self.principal;
        match self.record.state(now) {
            KeyState::Active => Ok(&self.principal),
            KeyState::Expired => Err(RejectedKey::Expired(id.clone(), name.clone())),
            KeyState::Revoked => Err(RejectedKey::Revoked(id.clone(), name.clone())),
        }
    }
}

/// Logs each key that was issued, replaced, revoked, changed or removed.
fn log_changes(before: &BTreeMap<KeyId, KeyEntry>, after: &BTreeMap<KeyId, KeyEntry>) {
    let log = |entry: &KeyEntry, change| {
        let Principal { id, name, .. } = &*entry.principal;
        tracing::info!(target: "petstore::keys", key = %id, key_name = %name, change, "API key changed");
    };
    for (id, entry) in after {
        let new = &entry.record;
        match before.get(id).map(|entry| &entry.record) {
            None => log(entry, "issued"),
            Some(old) if old == new => {}
            Some(old) if old.revoked.is_none() && new.revoked.is_some() => log(entry, "revoked"),
            Some(old) if old.revoked.is_some() && new.revoked.is_none() => log(entry, "active again"),
            Some(old) if old.overlap_until != new.overlap_until => log(entry, "replaced"),
            Some(_) => log(entry, "changed"),
        }
    }
    for (_, entry) in before.iter().filter(|(id, _)| !after.contains_key(id)) {
        log(entry, "removed from the file");
    }
}

#[cfg(test)]
pub(crate) mod tests;
