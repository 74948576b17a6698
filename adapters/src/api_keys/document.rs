//! The text of the key file: TOML, version 1 or 2.
//!
//! Both versions stay readable. Version 2 is written only when an entry needs it, so that older programs can
//! read the file for as long as possible. Unknown fields are refused: such a field may be a restriction from
//! a newer version or a misspelt `revoked`, and ignoring it would let somebody in.

mod version_1;
mod version_2;

use std::collections::HashSet;

use chrono::{DateTime, Datelike as _, SecondsFormat, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use toml::value::Datetime;

use self::{version_1::KeyV1, version_2::KeyV2};
use super::record::KeyRecord;

const NEWEST_VERSION: u64 = 2;
const HEADER: &str = "\
# The API keys of petstore, as SHA-256 hashes: the keys themselves are not here and cannot be recovered.
# `petstore keys issue`, `rotate` and `revoke` rewrite this file; comments are not kept.

";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<K> {
    version: u64,
    #[serde(default = "Vec::new")]
    key: Vec<K>,
}

/// Parses the file's text. The error is a clause that says what is wrong and where.
pub(super) fn parse(text: &[u8]) -> Result<Vec<KeyRecord>, String> {
    let keys: Vec<KeyV2> = match version(text)? {
        1 => entries::<KeyV1>(text)?.into_iter().map(KeyV2::from).collect(),
        2 => entries(text)?,
        0 => return Err("version 0 never existed".to_owned()),
        newer => return Err(format!("it has version {newer}, which only a newer petstore understands")),
    };
    let mut ids = HashSet::with_capacity(keys.len());
    keys.into_iter()
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

/// The file's text, in the oldest version that can hold these keys.
pub(super) fn write(records: &[KeyRecord]) -> String {
    let body = match records.iter().map(KeyV1::of).collect() {
        Some(key) => toml::to_string(&File::<KeyV1> { version: 1, key }),
        None => {
            toml::to_string(&File { version: NEWEST_VERSION, key: records.iter().map(KeyV2::from).collect() })
        }
    };
    format!("{HEADER}{}", body.expect("texts, times and lists of scopes are always TOML"))
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

/// The version of the file, whatever else is in it.
fn version(text: &[u8]) -> Result<u64, String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    toml::from_slice(text).map(|Versioned { version }| version).map_err(|error| one_line(text, &error))
}

fn entries<K: DeserializeOwned>(text: &[u8]) -> Result<Vec<K>, String> {
    toml::from_slice(text).map(|file: File<K>| file.key).map_err(|error| one_line(text, &error))
}

/// The parser's error in one line.
fn one_line(text: &[u8], error: &toml::de::Error) -> String {
    let place = error.span().and_then(|span| text.get(..span.start));
    let line = place.map(|before| before.split(|byte| *byte == b'\n').count());
    let message = error.message().replace('\n', ", ");
    line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
}

#[cfg(test)]
mod tests;
