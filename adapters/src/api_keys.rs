//! API keys: who may call, kept as hashes in one small file that can change while the service runs.
//!
//! Reading order: [`ApiKeys`] (every request asks it), `file` (the key file and how it changes), `record` (what is
//! known about a key), `key` (the secret), `document` (the file's text), `last_use`, `trouble`.

mod document;
mod file;
mod key;
mod last_use;
mod record;
mod trouble;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use application::{
    KeyId, Principal,
    ports::{Authenticator, Clock},
};
use chrono::{DateTime, Utc};
use parking_lot::{Mutex, RwLock};
use tokio::{
    task,
    time::{self, MissedTickBehavior},
};

pub use self::{
    file::{IssueError, Issued, KeyFile, KeyFileError, NewKey, RevokeError, Revoked},
    key::{ApiKey, InvalidKeyHash, KeyHash},
    record::{InvalidKeyName, KeyName, KeyRecord, KeyState},
};
use self::{
    key::ID_BYTES,
    last_use::LastUse,
    trouble::{Change, Trouble},
};
use crate::private_files;

/// The keys that are in force. They follow the key file; while it is broken or gone, the last good set stays.
pub struct ApiKeys {
    file: KeyFile,
    clock: Arc<dyn Clock>,
    keys: RwLock<HashMap<[u8; ID_BYTES], Known>>,
    seen: Mutex<Seen>,
    saved: Mutex<Saved>,
}

struct Known {
    record: KeyRecord,
    principal: Arc<Principal>,
    /// Outlives a change of the file.
    last_use: Arc<LastUse>,
}

/// The file as it was looked at last.
#[derive(Default)]
struct Seen {
    /// The content that is in force. Compared as a whole: times of change are too coarse and can be set.
    content: Vec<u8>,
    trouble: Trouble,
}

/// The uses as they were written last.
#[derive(Default)]
struct Saved {
    uses: BTreeMap<KeyId, Option<DateTime<Utc>>>,
    trouble: Trouble,
}

impl ApiKeys {
    /// How often the file is looked at. A change has to be in force within two seconds, on a busy machine too.
    pub const LOOK_EVERY: Duration = Duration::from_millis(500);
    /// How often the uses are written, if there were any.
    pub const SAVE_EVERY: Duration = Duration::from_secs(10);

    /// Takes the keys of the file at `path`. It must exist: see [`KeyFile::issue_first`].
    pub fn open(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Result<Arc<Self>, KeyFileError> {
        let keys = Self {
            file: KeyFile::at(path),
            clock,
            keys: RwLock::default(),
            seen: Mutex::default(),
            saved: Mutex::default(),
        };
        let content = keys.file.read()?;
        keys.put_in_force(&content)?;
        keys.seen.lock().content = content;
        Ok(Arc::new(keys))
    }

    /// Keeps up with the file and writes the uses down, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        let mut look = time::interval(Self::LOOK_EVERY);
        let mut save = time::interval(Self::SAVE_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        save.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let work = tokio::select! {
                _ = look.tick() => Self::reload,
                _ = save.tick() => Self::save_last_uses,
            };
            let keys = self.clone();
            // A program that ends cancels the work, which is no fault.
            if let Err(ended) = task::spawn_blocking(move || work(&keys)).await
                && ended.is_panic()
            {
                tracing::error!("looking after the API keys failed ({ended}): report this");
            }
        }
    }

    /// Looks at the file now. Waits for the disk.
    pub fn reload(&self) {
        let mut seen = self.seen.lock();
        let outcome = self.file.read().and_then(|content| {
            if content != seen.content {
                let count = self.put_in_force(&content)?;
                seen.content = content;
                tracing::info!("the key file changed; keys in force: {count}");
            }
            Ok(())
        });
        match seen.trouble.note(outcome.as_ref().err()) {
            Change::None => {}
            Change::Worse(error) => tracing::warn!("the keys read before stay in force: {error}"),
            Change::Better => tracing::info!("the key file is in order again"),
        }
    }

    /// Writes down when each key was last used, if that changed. Waits for the disk. To be called at a clean end
    /// too; nothing depends on its success.
    pub fn save_last_uses(&self) {
        let mut saved = self.saved.lock();
        let uses = self.last_uses();
        if uses == saved.uses || uses.values().all(Option::is_none) {
            return;
        }
        let outcome = self.file.note_uses(&uses);
        if outcome.is_ok() {
            saved.uses = uses;
        }
        match saved.trouble.note(outcome.as_ref().err()) {
            Change::None => {}
            Change::Worse(error) => tracing::warn!("the last use of API keys is not noted: {error}"),
            Change::Better => tracing::info!("the last use of API keys is noted again"),
        }
    }

    /// Replaces the set, and says how many keys of it are active. Nothing changes on error.
    fn put_in_force(&self, content: &[u8]) -> Result<usize, KeyFileError> {
        let records = self.file.parse(content)?;
        if private_files::is_writable_by_others(self.file.path()) {
            let path = self.file.path().display();
            tracing::warn!("others may write to {path} and so give themselves keys: chmod 600 {path}");
        }
        let now = self.clock.now();
        let active = records.iter().filter(|record| record.state(now) == KeyState::Active).count();
        let mut keys = self.keys.write();
        *keys = records
            .into_iter()
            .map(|record| {
                let last_use = keys.get(&record.hash.id_bytes()).map(|known| known.last_use.clone());
                (record.hash.id_bytes(), Known::new(record, last_use.unwrap_or_default()))
            })
            .collect();
        Ok(active)
    }

    fn last_uses(&self) -> BTreeMap<KeyId, Option<DateTime<Utc>>> {
        let keys = self.keys.read();
        keys.values().map(|known| (known.principal.id.clone(), known.last_use.get())).collect()
    }
}

impl Authenticator for ApiKeys {
    fn authenticate(&self, key: &str) -> Option<Arc<Principal>> {
        let hash = KeyHash::of_presented(key)?;
        let now = self.clock.now();
        let keys = self.keys.read();
        // Found by a part of the hash, so what the search takes tells nothing about any key.
        let known = keys.get(&hash.id_bytes())?;
        if known.record.hash != hash || known.record.state(now) != KeyState::Active {
            return None;
        }
        known.last_use.set(now);
        Some(known.principal.clone())
    }
}

impl Known {
    fn new(record: KeyRecord, last_use: Arc<LastUse>) -> Self {
        let (id, name, scopes) = (record.id(), record.name.to_string(), record.scopes);
        let owner = id.clone();
        Self { record, principal: Arc::new(Principal { id, owner, name, scopes }), last_use }
    }
}

#[cfg(test)]
mod tests;
