//! The output of the log commands: one field per line, with its name first.

use std::fmt::Display;

use application::{ports::Position, transfer::Tally};
use chrono::SecondsFormat;

use crate::output;

pub(super) fn fact(name: &str, value: impl Display) {
    output::print_line(format_args!("{name:<11} {value}"));
}

pub(super) fn tally(tally: &Tally) {
    fact("position", tally.position());
    fact("events", tally.events);
    fact("bytes", tally.bytes);
    if let Some((first, last)) = tally.span {
        fact("first", first.to_rfc3339_opts(SecondsFormat::Secs, true));
        fact("last", last.to_rfc3339_opts(SecondsFormat::Secs, true));
    }
    fact("digest", tally.digest());
    if let Some(head_hash) = tally.head_hash() {
        fact("head hash", head_hash);
    }
}

/// Formats ranges of positions: `42, 57 to 60`.
pub(super) fn ranges(ranges: &[(Position, Position)]) -> String {
    let texts = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") });
    texts.collect::<Vec<_>>().join(", ")
}
