//! The text of the key file: TOML.
//!
//! Unknown fields are rejected: such a field may be a restriction from another version or a misspelt `revoked`, and
//! ignoring it would accept a key that must be rejected.

use std::{collections::HashSet, fmt, path::Path};

use application::OwnerId;
use chrono::{DateTime, Datelike as _, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::key::{KeyHash, KeyRecord, is_id};
use crate::access::{Scope, Scopes};

/// The version of the key file.
pub const KEY_FILE_VERSION: i64 = 1;
const HEADER: &str = "\
# The API keys of petstore, as SHA-256 hashes: the keys themselves are not here and cannot be recovered.
# `petstore keys issue`, `rotate` and `revoke` rewrite this file; comments are not kept.

";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: i64,
    #[serde(default)]
    key: Vec<StoredKey>,
}

/// A key in the file. The optional fields are those that most keys do not need.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StoredKey {
    id: String,
    /// Absent: the id itself.
    owner: Option<String>,
    name: String,
    hash: String,
    scopes: Vec<Scope>,
    rate_limit: Option<String>,
    created: Datetime,
    expires: Option<Datetime>,
    overlap_until: Option<Datetime>,
    revoked: Option<Datetime>,
}

/// Parses the file at `path`. An error says what to do.
pub(super) fn parse(content: &[u8], path: &Path) -> Result<Vec<KeyRecord>, String> {
    let text = str::from_utf8(content).map_err(|_| broken(path, "it is not UTF-8 text"))?;
    let invalid = |error: toml::de::Error| broken(path, one_line(text, &error));
    // Another version may have other fields.
    let fields: toml::Table = toml::from_str(text).map_err(invalid)?;
    if let Some(version) = fields.get("version").and_then(toml::Value::as_integer)
        && version != KEY_FILE_VERSION
    {
        return Err(format!(
            "the key file {} has format version {version}, and this petstore reads only {KEY_FILE_VERSION}: run the petstore \
             that wrote it, or restore a backup",
            path.display()
        ));
    }
    let file: File = toml::from_str(text).map_err(invalid)?;
    let mut ids = HashSet::with_capacity(file.key.len());
    let parse = |(entry, number): (StoredKey, usize)| {
        let invalid = |rule| broken(path, format!("key {number}: {rule}"));
        let record = KeyRecord::try_from(entry).map_err(invalid)?;
        if ids.insert(record.id()) {
            Ok(record)
        } else {
            Err(invalid(format!("the id {} occurs twice", record.id())))
        }
    };
    file.key.into_iter().zip(1..).map(parse).collect()
}

/// The error of a file whose content breaks a rule.
pub(super) fn broken(path: &Path, what: impl fmt::Display) -> String {
    let path = path.display();
    format!("the key file {path} cannot be used: {what}; correct the file or the path, or restore a backup")
}

pub(super) fn write(records: &[KeyRecord]) -> String {
    let file = File { version: KEY_FILE_VERSION, key: records.iter().map(StoredKey::from).collect() };
    let body = toml::to_string(&file).expect("texts, times and lists of scopes are always TOML");
    format!("{HEADER}{body}")
}

impl From<&KeyRecord> for StoredKey {
    fn from(record: &KeyRecord) -> Self {
        let id = record.id();
        Self {
            owner: (record.owner != id.as_owner()).then(|| record.owner.to_string()),
            id: id.to_string(),
            name: record.name.to_string(),
            hash: record.hash.to_string(),
            scopes: record.scopes.iter().collect(),
            rate_limit: record.rate_limit.map(|limit| limit.to_string()),
            created: time_to_toml(record.created),
            expires: record.expires.map(time_to_toml),
            overlap_until: record.overlap_until.map(time_to_toml),
            revoked: record.revoked.map(time_to_toml),
        }
    }
}

impl TryFrom<StoredKey> for KeyRecord {
    type Error = String;

    fn try_from(key: StoredKey) -> Result<Self, String> {
        let hash = KeyHash::parse(&key.hash).ok_or("hash must be 64 lower-case hexadecimal digits")?;
        let id = hash.id();
        if key.id != *id.0 {
            return Err(format!("id must be {id}, the start of its hash"));
        }
        let time = |time: Option<Datetime>| time.as_ref().map(time_from_toml).transpose();
        Ok(Self {
            hash,
            owner: match key.owner {
                None => id.as_owner(),
                Some(owner) if is_id(&owner) => OwnerId(owner.into()),
                Some(_) => return Err("owner must be the id of a key".to_owned()),
            },
            name: key.name.parse()?,
            scopes: Scopes::new(key.scopes).ok_or("scopes must not be empty")?,
            rate_limit: key.rate_limit.as_deref().map(str::parse).transpose()?,
            created: time_from_toml(&key.created)?,
            expires: time(key.expires)?,
            overlap_until: time(key.overlap_until)?,
            revoked: time(key.revoked)?,
        })
    }
}

/// A time in TOML, to the second.
fn time_to_toml(time: DateTime<Utc>) -> Datetime {
    let text = time.to_rfc3339_opts(SecondsFormat::Secs, true);
    text.parse().expect("RFC 3339 with a four-digit year is TOML")
}

/// Parses a time from TOML, which also has dates, times of day and local times.
fn time_from_toml(time: &Datetime) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(&time.to_string())
        .map(|time| time.to_utc())
        .ok()
        .filter(|time| (0..=9_999).contains(&time.year()))
        .ok_or_else(|| format!("{time} is not a time with date and zone, like 2030-12-05T00:00:00Z"))
}

/// The parser's error in one line, without words that have another meaning here.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error
        .message()
        .replace('\n', ", ")
        .replace("unknown variant", "unknown value")
        .replace("key with no value", "name without a value");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.split('\n').count()),
        None => message,
    }
}

#[cfg(test)]
mod tests;
