//! The output of the log commands: one fact per line, with its name first.

use std::fmt::Display;

use application::{ports::Position, transfer::Summary};
use chrono::SecondsFormat;

use crate::output;

pub(super) fn fact(name: &str, value: impl Display) {
    output::print_line(format_args!("{name:<11} {value}"));
}

pub(super) fn summary(summary: &Summary) {
    fact("position", summary.last);
    fact("events", summary.events);
    fact("bytes", summary.bytes);
    if let Some((first, last)) = summary.span {
        fact("first", first.to_rfc3339_opts(SecondsFormat::Secs, true));
        fact("last", last.to_rfc3339_opts(SecondsFormat::Secs, true));
    }
    fact("format", format_versions(summary));
    fact("digest", summary.digest);
    fact("head hash", summary.head_hash);
}

/// The versions of the format that the records have.
fn format_versions(summary: &Summary) -> String {
    match summary.chained_from {
        None if summary.last == Position::START => "none yet".into(),
        None => "1".into(),
        Some(Position(1)) => "2".into(),
        Some(position) => format!("1, and 2 from position {position} on"),
    }
}

/// Formats ranges of positions: `42, 57 to 60`.
pub(super) fn ranges(ranges: &[(Position, Position)]) -> String {
    let texts = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") });
    texts.collect::<Vec<_>>().join(", ")
}
