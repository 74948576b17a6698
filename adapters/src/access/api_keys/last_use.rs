//! The time of the last use of each key. The service keeps it in memory and writes it at intervals to a small file next
//! to the key file, where `petstore keys list` reads it. Nodes that share the directory share the file.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use chrono::{DateTime, Utc};
use toml::value::Datetime;

use super::{
    document,
    file::{KeyFile, KeyFileError, broken, io_error},
};
use crate::{
    access::KeyId,
    private_files::{self, if_exists},
};

/// How long recording waits for the lock of the key file. It is retried soon.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

impl KeyFile {
    /// Returns the recorded time of use of each key. A running service is some seconds ahead of the file. Keys that
    /// were never used are absent.
    pub fn last_uses(&self) -> Result<BTreeMap<KeyId, DateTime<Utc>>, KeyFileError> {
        read(&path_of(&self.target()))
    }

    /// Writes newer times of use to the file. `known` holds every existing key, so that the file does not outgrow the
    /// key file.
    pub(super) fn record_uses(
        &self,
        known: &BTreeMap<KeyId, Option<DateTime<Utc>>>,
    ) -> Result<(), KeyFileError> {
        let lock = self.lock(LOCK_TIMEOUT)?;
        let path = path_of(lock.path());
        // A file that cannot be read is replaced.
        let mut uses = read(&path).unwrap_or_default();
        uses.retain(|id, _| known.contains_key(id));
        for (id, used) in known {
            if let Some(used) = used {
                uses.entry(id.clone())
                    .and_modify(|recorded| *recorded = (*recorded).max(*used))
                    .or_insert(*used);
            }
        }
        let table: BTreeMap<&str, Datetime> =
            uses.iter().map(|(id, used)| (&*id.0, document::time_to_toml(*used))).collect();
        let text = toml::to_string(&table).expect("a table of times is always TOML");
        private_files::replace(&path, text.as_bytes()).map_err(io_error("write", &path))
    }
}

fn path_of(key_file: &Path) -> PathBuf {
    key_file.with_extension("last-used.toml")
}

fn read(path: &Path) -> Result<BTreeMap<KeyId, DateTime<Utc>>, KeyFileError> {
    let content = if_exists(private_files::read(path, KeyFile::BYTES_MAX)).map_err(io_error("read", path))?;
    let Some(content) = content else { return Ok(BTreeMap::new()) };
    let table: BTreeMap<String, Datetime> =
        toml::from_slice(&content).map_err(|error| broken(path, error.message()))?;
    table
        .into_iter()
        .map(|(id, used)| {
            Ok((KeyId(id.into()), document::time_from_toml(&used).map_err(|what| broken(path, what))?))
        })
        .collect()
}
