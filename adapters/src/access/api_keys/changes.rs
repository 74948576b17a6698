//! Logs the differences between two versions of the key file.

use super::{ActiveKeys, record::KeyRecord};

/// The maximum number of changes that are logged individually.
const LINES_MAX: usize = 50;

/// Logs each key that was issued, replaced, revoked, changed or removed.
pub(super) fn log(before: &ActiveKeys, after: &ActiveKeys) {
    let kept_or_new = after.iter().filter_map(|(id, entry)| {
        let change = before.get(id).map_or(Some("issued"), |old| change(&old.record, &entry.record))?;
        Some((&entry.record, change))
    });
    let removed = before.iter().filter(|(id, _)| !after.contains_key(*id));
    let changes: Vec<_> =
        kept_or_new.chain(removed.map(|(_, entry)| (&entry.record, "removed from the file"))).collect();
    for (record, change) in changes.iter().take(LINES_MAX) {
        tracing::info!(
            target: "petstore::keys",
            key = %record.id(), key_name = %record.name, change,
            "API key changed"
        );
    }
    if let Some(suppressed) = changes.len().checked_sub(LINES_MAX).filter(|count| *count > 0) {
        tracing::info!(target: "petstore::keys", suppressed, "more API keys changed");
    }
}

fn change(before: &KeyRecord, after: &KeyRecord) -> Option<&'static str> {
    if before == after {
        return None;
    }
    Some(match (before.revoked, after.revoked) {
        (None, Some(_)) => "revoked",
        (Some(_), None) => "active again",
        (None, None) | (Some(_), Some(_)) if before.overlap_until != after.overlap_until => "replaced",
        (None, None) | (Some(_), Some(_)) => "changed",
    })
}
