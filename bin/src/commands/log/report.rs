//! The output of the log commands: one field per line, with its name first.

use std::fmt::Display;

use application::{ports::Position, transfer::Tally};
use chrono::SecondsFormat;

use crate::output;

pub(super) fn field(name: &str, value: impl Display) {
    output::print_line(format_args!("{name:<11} {value}"));
}

/// Reports that the target, which ends at `head`, already held everything up to `position`.
pub(super) fn nothing_new(name: &str, target: impl Display, head: Position, position: Position) {
    if position == Position::START {
        return field(name, "nothing: the source is empty");
    }
    let more = if head > position { format!(", and ends at position {head}") } else { String::new() };
    field(name, format!("nothing: {target} already holds everything up to position {position}{more}"));
}

pub(super) fn tally(tally: &Tally) {
    field("position", tally.position());
    field("events", tally.events);
    field("bytes", tally.bytes);
    if let Some((first, last)) = tally.span {
        field("first", first.to_rfc3339_opts(SecondsFormat::Secs, true));
        field("last", last.to_rfc3339_opts(SecondsFormat::Secs, true));
    }
    field("digest", tally.digest());
    if let Some(head_hash) = tally.head_hash() {
        field("head hash", head_hash);
    }
}

/// Formats ranges of positions: `42, 57 to 60`.
pub(super) fn ranges(ranges: &[(Position, Position)]) -> String {
    let texts = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") });
    texts.collect::<Vec<_>>().join(", ")
}
