//! The list of keys, as a table or as JSON.

use std::{array, iter};

use adapters::access::api_keys::KeyRecord;
use chrono::{DateTime, Utc};
use serde_json::json;

use super::{printable, time};

const COLUMNS: [&str; 8] = ["ID", "OWNER", "STATE", "SCOPES", "LIMIT", "CREATED", "EXPIRES", "NAME"];

/// One line per key, below a header line.
pub(super) fn render(keys: &[KeyRecord], now: DateTime<Utc>) -> String {
    let headings = COLUMNS.map(str::to_owned);
    let rows: Vec<_> = iter::once(headings).chain(keys.iter().map(|key| row(key, now))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [_; COLUMNS.len()] = array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; COLUMNS.len()]| {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// One JSON object per key and line.
pub(super) fn render_json(keys: &[KeyRecord], now: DateTime<Utc>) -> String {
    let line = |key: &KeyRecord| {
        let object = json!({
            "id": key.id().to_string(),
            "owner": key.owner.to_string(),
            "name": key.name.as_str(),
            "state": key.state(now),
            "scopes": key.scopes.to_string().split(',').collect::<Vec<_>>(),
            "rateLimit": key.rate_limit.map(|limit| limit.to_string()),
            "created": time(key.created),
            "expires": key.end().map(time),
        });
        object.to_string() + "\n"
    };
    keys.iter().map(line).collect()
}

fn row(key: &KeyRecord, now: DateTime<Utc>) -> [String; COLUMNS.len()] {
    [
        key.id().to_string(),
        key.owner.to_string(),
        key.state(now).to_string(),
        key.scopes.to_string(),
        key.rate_limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string()),
        time(key.created),
        key.end().map_or_else(|| "never".to_owned(), time),
        printable(&key.name),
    ]
}

#[cfg(test)]
mod tests {
    use adapters::access::{Scope, Scopes, api_keys::KeyHash};
    use application::OwnerId;
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn every_key_has_a_line_and_every_column_is_aligned() {
        let created = DateTime::UNIX_EPOCH;
        let key = |digit: &str, name: &str, scopes| KeyRecord {
            hash: KeyHash::parse(&digit.repeat(64)).unwrap(),
            owner: OwnerId(digit.repeat(12).into()),
            name: name.parse().unwrap(),
            scopes,
            rate_limit: None,
            created,
            expires: None,
            overlap_until: None,
            revoked: None,
        };
        let expired = KeyRecord {
            expires: Some(created + TimeDelta::days(1)),
            ..key("b", "visitor", Scope::Read.into())
        };
        let revoked = KeyRecord { revoked: Some(created), ..key("c", "łost", Scope::Write.into()) };
        let successor = KeyRecord {
            owner: OwnerId("a".repeat(12).into()),
            rate_limit: Some("10/s".parse().unwrap()),
            ..key("d", "web shop", Scopes::READ_WRITE)
        };
        let replaced = KeyRecord {
            overlap_until: Some(created + TimeDelta::days(3)),
            ..key("a", "web shop", Scopes::READ_WRITE)
        };
        let keys = [replaced, expired, revoked, successor];
        let now = created + TimeDelta::days(2);
        let expected = "\
ID            OWNER         STATE    SCOPES      LIMIT  CREATED               EXPIRES               NAME
aaaaaaaaaaaa  aaaaaaaaaaaa  active   read,write  none   1970-01-01T00:00:00Z  1970-01-04T00:00:00Z  web shop
bbbbbbbbbbbb  bbbbbbbbbbbb  expired  read        none   1970-01-01T00:00:00Z  1970-01-02T00:00:00Z  visitor
cccccccccccc  cccccccccccc  revoked  write       none   1970-01-01T00:00:00Z  never                 łost
dddddddddddd  aaaaaaaaaaaa  active   read,write  10/s   1970-01-01T00:00:00Z  never                 web shop
";
        assert_eq!(render(&keys, now), expected);
    }
}
