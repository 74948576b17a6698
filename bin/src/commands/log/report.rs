//! The output of the log commands: one field per line, with its name first.

use std::fmt::Display;

use anyhow::bail;
use application::{
    ports::Position,
    transfer::{Cut, Tally},
};
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::until;
use crate::{output, store_url::StoreUrl};

pub(super) fn field(name: &str, value: impl Display) {
    output::print_line(format_args!("{name:<11} {value}"));
}

/// Reports what was stored in `target`, which ended at `before`: nothing if it already held everything. Fails if the target
/// has commits after `cut`.
pub(super) fn stored(
    name: &str,
    from: impl Display,
    target: &StoreUrl,
    before: Position,
    stored: &Tally,
    cut: &Cut,
) -> anyhow::Result<()> {
    let position = stored.position();
    if cut.end.is_some() && before > position {
        bail!(
            "{target} already ends at position {before}, after position {position}: choose an empty target"
        );
    }
    if position == Position::START {
        field(name, "nothing: the source is empty");
    } else if before >= position {
        let more = if before > position { format!(", and ends at position {before}") } else { String::new() };
        field(name, format!("nothing: {target} already holds everything up to position {position}{more}"));
    } else {
        field(name, from);
    }
    tally(stored);
    if let Some(sentence) = until::describe(cut) {
        field("until", sentence);
    }
    Ok(())
}

pub(super) fn tally(tally: &Tally) {
    field("position", tally.position());
    field("events", tally.events);
    field("bytes", tally.bytes);
    if let Some((first, last)) = tally.span {
        field("first", seconds(first));
        field("last", seconds(last));
    }
    if let Some(head_hash) = tally.head_hash() {
        field("head hash", head_hash);
    }
}

/// The fields of [`tally`] as a JSON object, with the names of an export's manifest.
pub(super) fn tally_as_json(store: &StoreUrl, tally: &Tally) -> Value {
    json!({
        "store": store.to_string(),
        "position": tally.position().0,
        "events": tally.events,
        "bytes": tally.bytes,
        "first": tally.span.map(|(first, _)| seconds(first)),
        "last": tally.span.map(|(_, last)| seconds(last)),
        "head": tally.head_hash().map(|head| head.to_string()),
    })
}

/// Formats a time to the second.
pub(super) fn seconds(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Formats a number of commits.
pub(super) fn commits(count: u64) -> String {
    format!("{count} commit{}", if count == 1 { "" } else { "s" })
}

/// Formats ranges of positions: `42, 57 to 60`.
pub(super) fn ranges(ranges: &[(Position, Position)]) -> String {
    let texts = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_commit_is_not_several() {
        assert_eq!([0, 1, 2].map(commits), ["0 commits", "1 commit", "2 commits"]);
    }
}
