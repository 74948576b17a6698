//! API keys that expire: reports them in the service log before they do, and their next expiry as a metric.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use chrono::{DateTime, TimeDelta, Utc};

use super::{ActiveKeys, KeyEntry, record::KeyState};

/// How long before its expiry a key is reported.
const NOTICE: TimeDelta = TimeDelta::days(7);

/// The maximum number of keys that are reported individually at a time.
const LINES_MAX: usize = 50;

/// Reports each key once that expires within [`NOTICE`].
pub(super) fn report(keys: &ActiveKeys, now: DateTime<Utc>) {
    let expiring = keys.values().filter_map(|entry| Some((entry, end(entry, now)?)));
    let new = expiring
        .filter(|(entry, end)| *end - now <= NOTICE && !entry.announced.swap(true, Relaxed))
        .collect::<Vec<_>>();
    for (entry, expires) in new.iter().take(LINES_MAX) {
        tracing::warn!(
            target: "petstore::keys",
            key = %entry.record.id(), key_name = %entry.record.name, ?expires,
            "API key expires soon"
        );
    }
    if let Some(suppressed) = new.len().checked_sub(LINES_MAX).filter(|count| *count > 0) {
        tracing::warn!(target: "petstore::keys", suppressed, "more API keys expire soon");
    }
}

/// The next expiry of each name, among the keys that are still accepted.
pub(super) fn by_name(keys: &ActiveKeys, now: DateTime<Utc>) -> Vec<(String, DateTime<Utc>)> {
    let mut next = BTreeMap::<&str, DateTime<Utc>>::new();
    for entry in keys.values() {
        if let Some(end) = end(entry, now) {
            next.entry(entry.record.name.as_str()).and_modify(|next| *next = end.min(*next)).or_insert(end);
        }
    }
    next.into_iter().map(|(name, end)| (name.to_owned(), end)).collect()
}

/// When an active key expires. `None` for a key that was rotated: its end is intended.
fn end(entry: &KeyEntry, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let is_rotated = entry.record.overlap_until.is_some();
    entry.record.expires.filter(|_| entry.state(now) == KeyState::Active && !is_rotated)
}
