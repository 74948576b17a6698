//! A rate limit, as operators write it: `10/s`.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

/// The periods, with their units.
const PERIODS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_mins(1)), ("h", Duration::from_hours(1))];

/// A number of requests per second, minute or hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    requests: NonZeroU32,
    unit: &'static str,
    period: Duration,
}

impl RateLimit {
    /// The maximum number of requests per period.
    pub const REQUESTS_MAX: u32 = 1_000_000;

    /// The number of requests per period.
    pub fn requests(self) -> NonZeroU32 {
        self.requests
    }

    /// The length of one period.
    pub fn period(self) -> Duration {
        self.period
    }
}

impl FromStr for RateLimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (requests, unit) = text.split_once('/')?;
            let (unit, period) = PERIODS.into_iter().find(|(known, _)| *known == unit)?;
            // Parsing a number would accept a plus sign.
            let requests = Some(requests).filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))?;
            let requests: NonZeroU32 = requests.parse().ok()?;
            (requests.get() <= Self::REQUESTS_MAX).then_some(Self { requests, unit, period })
        };
        parse().ok_or("a rate limit is a number from 1 to 1000000 and /s, /m or /h, such as 10/s")
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.requests, self.unit)
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
            let rule = text.parse::<RateLimit>().unwrap_err();
            assert!(rule.contains(&format!("from 1 to {} and", RateLimit::REQUESTS_MAX)), "{text:?}: {rule}");
        }
    }
}
