//! How long a key is valid, and how long the key that it replaces stays valid, as people write it: `90d`.

use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use thiserror::Error;

/// A span of time from one second to ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(TimeDelta);

/// A span of time from nothing to ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overlap(TimeDelta);

/// A text that is not such a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum InvalidSpan {
    /// Not a lifetime.
    #[error("expected a duration such as 90d, 12h or 1h30m, from 1s to 3650d")]
    Lifetime,
    /// Not an overlap.
    #[error("expected a duration such as 0s, 12h or 1d, up to 3650d")]
    Overlap,
}

/// Ten years. A key that is meant to be valid for longer should never expire.
const SPAN_MAX: TimeDelta = TimeDelta::days(3_650);

impl Lifetime {
    /// The time that is this much later than `now`.
    pub(crate) fn after(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now + self.0
    }
}

impl Overlap {
    pub(crate) fn span(self) -> TimeDelta {
        self.0
    }
}

impl FromStr for Lifetime {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Self, InvalidSpan> {
        let span = parse(text).filter(|span| *span >= TimeDelta::seconds(1));
        span.map(Self).ok_or(InvalidSpan::Lifetime)
    }
}

impl FromStr for Overlap {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Self, InvalidSpan> {
        parse(text).map(Self).ok_or(InvalidSpan::Overlap)
    }
}

fn parse(text: &str) -> Option<TimeDelta> {
    let span = TimeDelta::from_std(humantime::parse_duration(text).ok()?).ok()?;
    (span <= SPAN_MAX).then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_from_one_second_to_ten_years_is_a_lifetime() {
        for (text, seconds) in [
            ("1s", 1),
            ("30s", 30),
            ("15m", 900),
            ("12h", 43_200),
            ("90d", 7_776_000),
            ("1w", 604_800),
            ("1d 12h", 129_600),
            ("3650d", 315_360_000),
        ] {
            assert_eq!(text.parse(), Ok(Lifetime(TimeDelta::seconds(seconds))), "{text:?}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "d",
            "90",
            "0d",
            "-1d",
            "+1d",
            "999ms",
            "1dd",
            "3651d",
            "522w",
            "9223372036854775807w",
            "99999999999999999999s",
            "٣d",
            "1é",
        ] {
            assert_eq!(text.parse::<Lifetime>(), Err(InvalidSpan::Lifetime), "{text:?}");
        }
    }

    #[test]
    fn an_overlap_may_be_zero() {
        assert_eq!("0s".parse(), Ok(Overlap(TimeDelta::zero())));
        assert_eq!("1d".parse(), Ok(Overlap(TimeDelta::days(1))));
        assert_eq!("3651d".parse::<Overlap>(), Err(InvalidSpan::Overlap));
    }
}
