//! The text of the key file: TOML, version 1.
//!
//! Unknown fields are refused: such a field may be a restriction from a newer version or a misspelt `revoked`, and
//! ignoring it would let somebody in.

use std::collections::HashSet;

use application::{Scope, Scopes};
use chrono::{DateTime, Datelike as _, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use toml::value::Datetime;

use super::record::KeyRecord;

const VERSION: u64 = 1;
const HEADER: &str = "\
# The API keys of petstore, as SHA-256 hashes: the keys themselves are not here and cannot be recovered.
# `petstore keys issue` and `petstore keys revoke` rewrite this file; comments are not kept.

";

/// Parses the file's text. The error is a clause that says what is wrong and where.
pub(super) fn parse(text: &[u8]) -> Result<Vec<KeyRecord>, String> {
    let file: FileV1 = match toml::from_slice(text) {
        Ok(file) => file,
        Err(error) => return Err(newer_version(text).unwrap_or_else(|| fault(text, &error))),
    };
    if file.version != VERSION {
        return Err(newer_version(text).unwrap_or_else(|| format!("version {} never existed", file.version)));
    }
    let mut ids = HashSet::with_capacity(file.key.len());
    file.key
        .into_iter()
        .enumerate()
        .map(|(index, key)| {
            let record = KeyRecord::try_from(key).map_err(|rule| format!("key {}: {rule}", index + 1))?;
            if ids.insert(record.hash.id_bytes()) {
                Ok(record)
            } else {
                Err(format!("key {}: the id {} occurs twice", index + 1, record.id()))
            }
        })
        .collect()
}

/// The file's text.
pub(super) fn write(records: &[KeyRecord]) -> String {
    let file = FileV1 { version: VERSION, key: records.iter().map(KeyV1::from).collect() };
    let body = toml::to_string(&file).expect("texts, times and lists of scopes are always TOML");
    format!("{HEADER}{body}")
}

/// A time in TOML, to the second.
pub(super) fn time_to_toml(time: DateTime<Utc>) -> Datetime {
    let text = time.to_rfc3339_opts(SecondsFormat::Secs, true);
    text.parse().expect("RFC 3339 with a four-digit year is TOML")
}

/// A time from TOML, which also knows dates, times of day and local times.
pub(super) fn time_from_toml(time: &Datetime) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(&time.to_string())
        .map(|time| time.to_utc())
        .ok()
        .filter(|time| (0..=9_999).contains(&time.year()))
        .ok_or_else(|| format!("{time} is not a time with date and zone, like 2030-12-05T00:00:00Z"))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileV1 {
    version: u64,
    #[serde(default)]
    key: Vec<KeyV1>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyV1 {
    id: String,
    name: String,
    hash: String,
    scopes: Vec<ScopeV1>,
    created: Datetime,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Datetime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked: Option<Datetime>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScopeV1 {
    Read,
    Write,
}

impl From<Scope> for ScopeV1 {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Self::Read,
            Scope::Write => Self::Write,
        }
    }
}

impl From<ScopeV1> for Scope {
    fn from(scope: ScopeV1) -> Self {
        match scope {
            ScopeV1::Read => Self::Read,
            ScopeV1::Write => Self::Write,
        }
    }
}

impl From<&KeyRecord> for KeyV1 {
    fn from(record: &KeyRecord) -> Self {
        Self {
            id: record.id().to_string(),
            name: record.name.to_string(),
            hash: record.hash.to_string(),
            scopes: record.scopes.iter().map(ScopeV1::from).collect(),
            created: time_to_toml(record.created),
            expires: record.expires.map(time_to_toml),
            revoked: record.revoked.map(time_to_toml),
        }
    }
}

impl TryFrom<KeyV1> for KeyRecord {
    type Error = String;

    fn try_from(key: KeyV1) -> Result<Self, String> {
        let record = Self {
            hash: key.hash.parse().map_err(|rule| format!("hash {rule}"))?,
            name: key.name.parse().map_err(|rule| format!("{rule}"))?,
            scopes: Scopes::new(key.scopes.into_iter().map(Scope::from)).ok_or("scopes must not be empty")?,
            created: time_from_toml(&key.created)?,
            expires: key.expires.as_ref().map(time_from_toml).transpose()?,
            revoked: key.revoked.as_ref().map(time_from_toml).transpose()?,
        };
        let id = record.id();
        if key.id == *id.0 { Ok(record) } else { Err(format!("id must be {id}, the start of its hash")) }
    }
}

/// If the file has a version that this program does not know: the clause that says so.
fn newer_version(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    let Versioned { version } = toml::from_slice(text).ok()?;
    (version > VERSION).then(|| format!("it has version {version}, which only a newer petstore understands"))
}

/// The parser's error in one line.
fn fault(text: &[u8], error: &toml::de::Error) -> String {
    let place = error.span().and_then(|span| text.get(..span.start));
    let line = place.map(|before| before.split(|byte| *byte == b'\n').count());
    let message = error.message().replace('\n', ", ");
    line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
}

#[cfg(test)]
mod tests;
