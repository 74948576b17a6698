//! How long a new key is valid, as people write it: `90d`.

use std::{error::Error, fmt, str::FromStr};

use chrono::{DateTime, TimeDelta, Utc};

/// A span of time from one second to ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(TimeDelta);

/// A text that is no such span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidLifetime;

impl Lifetime {
    /// Ten years. A key that is to live longer had better have no end at all.
    pub(crate) const MAX: TimeDelta = TimeDelta::days(3_650);

    /// The moment that is so much later than `now`.
    pub(crate) fn after(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now + self.0
    }
}

impl FromStr for Lifetime {
    type Err = InvalidLifetime;

    fn from_str(text: &str) -> Result<Self, InvalidLifetime> {
        let unit = text.chars().next_back().ok_or(InvalidLifetime)?;
        let seconds_each = match unit {
            's' => 1,
            'm' => 60,
            'h' => 60 * 60,
            'd' => 24 * 60 * 60,
            'w' => 7 * 24 * 60 * 60,
            _ => return Err(InvalidLifetime),
        };
        let number = &text[..text.len() - unit.len_utf8()];
        if !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(InvalidLifetime);
        }
        number
            .parse::<i64>()
            .ok()
            .and_then(|count| count.checked_mul(seconds_each))
            .and_then(TimeDelta::try_seconds)
            .filter(|span| (TimeDelta::seconds(1)..=Self::MAX).contains(span))
            .map(Self)
            .ok_or(InvalidLifetime)
    }
}

impl Error for InvalidLifetime {}

impl fmt::Display for InvalidLifetime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("write a whole number and its unit (s, m, h, d or w), such as 90d, from 1s to 3650d")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit_are_a_lifetime() {
        for (text, seconds) in [
            ("1s", 1),
            ("30s", 30),
            ("15m", 900),
            ("12h", 43_200),
            ("90d", 7_776_000),
            ("1w", 604_800),
            ("3650d", 315_360_000),
            ("007d", 604_800),
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
            "1.5d",
            "1 d",
            " 1d",
            "1d ",
            "1D",
            "1y",
            "1dd",
            "1d12h",
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
