//! How long a new key is valid, as people write it: `90d`.

use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use thiserror::Error;

/// A span of time from one second to ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(TimeDelta);

/// A text that is not such a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("write a time such as 90d, 12h or 1h30m, from 1s to 3650d")]
pub(crate) struct InvalidLifetime;

impl Lifetime {
    /// Ten years. A key that is meant to be valid for longer should never expire.
    pub(crate) const MAX: TimeDelta = TimeDelta::days(3_650);

    /// The time that is this much later than `now`.
    pub(crate) fn after(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now + self.0
    }
}

impl FromStr for Lifetime {
    type Err = InvalidLifetime;

    fn from_str(text: &str) -> Result<Self, InvalidLifetime> {
        let span = humantime::parse_duration(text).map_err(|_| InvalidLifetime)?;
        TimeDelta::from_std(span)
            .ok()
            .filter(|span| (TimeDelta::seconds(1)..=Self::MAX).contains(span))
            .map(Self)
            .ok_or(InvalidLifetime)
    }
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
            assert_eq!(text.parse::<Lifetime>(), Err(InvalidLifetime), "{text:?}");
        }
    }
}
