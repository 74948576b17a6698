//! What the log commands print: one fact per line, its name first.

use std::fmt::Display;

use application::{ports::Position, transfer::Summary};
use chrono::SecondsFormat;

use crate::say;

pub(super) fn line(name: &str, fact: impl Display) {
    say::line(format_args!("{name:<11} {fact}"));
}

pub(super) fn summary(summary: &Summary) {
    line("position", summary.last);
    line("events", summary.events);
    line("bytes", summary.bytes);
    if let Some((first, last)) = summary.span {
        line("first", first.to_rfc3339_opts(SecondsFormat::Secs, true));
        line("last", last.to_rfc3339_opts(SecondsFormat::Secs, true));
    }
    line("digest", summary.digest);
}

/// Positions as people write them: `42, 57 to 60`.
pub(super) fn ranges(ranges: &[(Position, Position)]) -> String {
    let words = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") });
    words.collect::<Vec<_>>().join(", ")
}
