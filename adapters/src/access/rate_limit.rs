//! A rate limit, as operators write it: `10/s`.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use thiserror::Error;

/// A number of requests per second, minute or hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    requests: NonZeroU32,
    period: Period,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Period {
    Second,
    Minute,
    Hour,
}

/// A string that is not a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a rate limit is a number from 1 to {max} and /s, /m or /h, such as 10/s", max = RateLimit::REQUESTS_MAX)]
pub struct InvalidRateLimit;

impl RateLimit {
    /// The maximum number of requests per period.
    pub const REQUESTS_MAX: u32 = 1_000_000;

    /// The number of requests per period.
    pub fn requests(self) -> NonZeroU32 {
        self.requests
    }

    /// The length of one period.
    pub fn period(self) -> Duration {
        match self.period {
            Period::Second => Duration::from_secs(1),
            Period::Minute => Duration::from_mins(1),
            Period::Hour => Duration::from_hours(1),
        }
    }
}

impl FromStr for RateLimit {
    type Err = InvalidRateLimit;

    fn from_str(text: &str) -> Result<Self, InvalidRateLimit> {
        let (requests, period) = text.split_once('/').ok_or(InvalidRateLimit)?;
        let period = match period {
            "s" => Period::Second,
            "m" => Period::Minute,
            "h" => Period::Hour,
            _ => return Err(InvalidRateLimit),
        };
        // Parsing a number would accept a plus sign.
        if !requests.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(InvalidRateLimit);
        }
        let requests: NonZeroU32 = requests.parse().map_err(|_| InvalidRateLimit)?;
        if requests.get() > Self::REQUESTS_MAX {
            return Err(InvalidRateLimit);
        }
        Ok(Self { requests, period })
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = match self.period {
            Period::Second => "s",
            Period::Minute => "m",
            Period::Hour => "h",
        };
        write!(formatter, "{}/{period}", self.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_period_are_a_rate_limit() {
        for (text, requests, seconds) in
            [("1/s", 1, 1), ("10/s", 10, 1), ("100/m", 100, 60), ("1000000/h", 1_000_000, 3_600)]
        {
            let limit: RateLimit = text.parse().unwrap();
            assert_eq!((limit.requests().get(), limit.period().as_secs()), (requests, seconds));
            assert_eq!(limit.to_string(), text);
        }
    }

    #[test]
    fn everything_else_is_rejected() {
        let wrong = "10 /s 10/ 0/s 1000001/s 10/d 10/S +1/s -1/s 1.5/s 1/s/s";
        for text in wrong.split(' ').chain(["", " 1/s"]) {
            assert_eq!(text.parse::<RateLimit>(), Err(InvalidRateLimit), "{text:?}");
        }
    }
}
