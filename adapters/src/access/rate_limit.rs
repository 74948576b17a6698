//! Rate limits. A limit of `10/s` allows ten requests at once, and then one every tenth of a second.

use std::{fmt, num::NonZeroU32, str::FromStr, sync::Arc, time::Duration};

use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
    middleware::StateInformationMiddleware,
};

/// The periods, with their units.
const PERIODS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_mins(1)), ("h", Duration::from_hours(1))];

/// A number of requests per second, minute or hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// The maximum number of requests per period.
    pub requests: NonZeroU32,
    unit: &'static str,
    /// A second, a minute or an hour.
    pub period: Duration,
}

impl RateLimit {
    /// The maximum number of requests per period.
    pub const REQUESTS_MAX: u32 = 1_000_000;

    /// The quota of a limiter: the whole limit as a burst, replenished evenly.
    pub fn quota(self) -> Quota {
        let one = Quota::with_period(self.period / self.requests.get());
        one.expect("a million requests per second leave time for each").allow_burst(self.requests)
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

/// The remaining requests of one client. Taking one costs one read of the clock and one compare-and-swap.
#[derive(Debug)]
pub struct Allowance {
    limit: RateLimit,
    limiter: DefaultDirectRateLimiter<StateInformationMiddleware>,
}

/// The state of an allowance after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// The limit that the request counts against.
    pub limit: RateLimit,
    /// The number of requests that may follow at once.
    pub remaining: u32,
    /// How long the client has to wait, if this request is over the limit.
    pub wait: Option<Duration>,
}

impl Allowance {
    /// A full allowance.
    pub fn new(limit: RateLimit) -> Self {
        Self { limit, limiter: RateLimiter::direct(limit.quota()).with_middleware() }
    }

    /// Returns `before` if it has the same limit, otherwise a full allowance.
    #[must_use]
    pub fn continued(before: Option<&Arc<Self>>, limit: RateLimit) -> Arc<Self> {
        let same = before.filter(|allowance| allowance.limit == limit);
        same.map_or_else(|| Arc::new(Self::new(limit)), Arc::clone)
    }

    /// Counts a request. A rejected one uses nothing up.
    pub fn take(&self) -> Balance {
        let limit = self.limit;
        match self.limiter.check() {
            Ok(left) => Balance { limit, remaining: left.remaining_burst_capacity(), wait: None },
            Err(until) => {
                let wait = until.wait_time_from(DefaultClock::default().now());
                Balance { limit, remaining: 0, wait: Some(wait) }
            }
        }
    }
}

impl Balance {
    /// The time after which one more request is available, at the latest.
    pub fn next_in(self) -> Duration {
        self.wait.unwrap_or(self.limit.period / self.limit.requests.get())
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
            assert_eq!((limit.requests.get(), limit.period.as_secs()), (requests, seconds));
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

    #[test]
    fn a_burst_is_allowed_and_a_request_over_the_limit_gets_the_time_to_wait() {
        let allowance = Allowance::new("3/h".parse().unwrap());
        for remaining in [2, 1, 0] {
            let balance = allowance.take();
            assert_eq!((balance.remaining, balance.wait), (remaining, None));
            assert_eq!(balance.next_in().as_secs(), 1_200);
        }
        let rejected = allowance.take();
        let wait = rejected.wait.expect("over the limit");
        assert!((1_100..=1_200).contains(&wait.as_secs()), "a third of an hour: {wait:?}");
        assert_eq!(rejected.next_in(), wait);
    }

    #[test]
    fn the_fastest_limit_can_be_kept() {
        let allowance = Allowance::new("1000000/s".parse().unwrap());
        assert!((0..1_000_000).all(|_| allowance.take().wait.is_none()));
    }

    #[test]
    fn what_is_used_up_stays_used_up_while_the_limit_is_the_same() {
        let limit: RateLimit = "2/h".parse().unwrap();
        let first = Allowance::continued(None, limit);
        first.take();
        assert_eq!(Allowance::continued(Some(&first), limit).take().remaining, 0);
        assert_eq!(Allowance::continued(Some(&first), "3/h".parse().unwrap()).take().remaining, 2);
    }
}
