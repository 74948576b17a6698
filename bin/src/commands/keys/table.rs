//! The list of keys as a table.

use std::{collections::BTreeMap, fmt::Write as _};

use adapters::api_keys::KeyRecord;
use application::KeyId;
use chrono::{DateTime, SecondsFormat, Utc};

const COLUMNS: [&str; 7] = ["ID", "STATE", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "NAME"];

/// One line for each key under a line of headings. Without `last_uses` they are shown as unknown.
pub(super) fn render(
    keys: &[KeyRecord],
    last_uses: Option<&BTreeMap<KeyId, DateTime<Utc>>>,
    now: DateTime<Utc>,
) -> String {
    let headings = COLUMNS.map(str::to_owned);
    let rows: Vec<_> =
        std::iter::once(headings).chain(keys.iter().map(|key| row(key, last_uses, now))).collect();
    let widths: [usize; COLUMNS.len()] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            write!(line, "{cell:width$}  ").expect("memory takes every write");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(
    key: &KeyRecord,
    last_uses: Option<&BTreeMap<KeyId, DateTime<Utc>>>,
    now: DateTime<Utc>,
) -> [String; COLUMNS.len()] {
    let id = key.id();
    let last_use = last_uses.map(|uses| uses.get(&id).copied());
    [
        id.to_string(),
        key.state(now).to_string(),
        key.scopes.to_string(),
        time(key.created),
        key.expires.map_or_else(|| "never".to_owned(), time),
        last_use.map_or_else(|| "unknown".to_owned(), |used| used.map_or_else(|| "never".to_owned(), time)),
        key.name.to_string(),
    ]
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use application::{Scope, Scopes};
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn every_key_has_a_line_and_every_column_is_aligned() {
        let created = DateTime::UNIX_EPOCH;
        let key = |digit: &str, name: &str, scopes| KeyRecord {
            hash: digit.repeat(64).parse().unwrap(),
            name: name.parse().unwrap(),
            scopes,
            created,
            expires: None,
            revoked: None,
        };
        let expired = KeyRecord {
            expires: Some(created + TimeDelta::days(1)),
            ..key("b", "visitor", Scope::Read.into())
        };
        let revoked = KeyRecord { revoked: Some(created), ..key("c", "łost", Scope::Write.into()) };
        let keys = [key("a", "web shop", Scopes::READ_WRITE), expired, revoked];
        let now = created + TimeDelta::days(2);
        let uses = BTreeMap::from([(keys[0].id(), now)]);
        let expected = "\
ID            STATE    SCOPES      CREATED               EXPIRES               LAST USED             NAME
aaaaaaaaaaaa  active   read,write  1970-01-01T00:00:00Z  never                 1970-01-03T00:00:00Z  web shop
bbbbbbbbbbbb  expired  read        1970-01-01T00:00:00Z  1970-01-02T00:00:00Z  never                 visitor
cccccccccccc  revoked  write       1970-01-01T00:00:00Z  never                 never                 łost
";
        assert_eq!(render(&keys, Some(&uses), now), expected);
        assert!(render(&keys, None, now).contains("unknown"));
    }
}
