//! What is left of a rate limit. A limit of `10/s` allows ten requests at once, and then one every tenth of a second.

use std::{sync::Arc, time::Duration};

use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
    middleware::StateInformationMiddleware,
};

use super::rate_limit::RateLimit;

/// The requests that one caller may still send. Taking one costs a look at the clock and one compare-and-swap.
#[derive(Debug)]
pub struct Allowance {
    limit: RateLimit,
    limiter: DefaultDirectRateLimiter<StateInformationMiddleware>,
}

/// The state of an allowance after a request was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// The limit that is enforced.
    pub limit: RateLimit,
    /// How many requests could follow at once.
    pub remaining: u32,
    /// How long the caller has to wait, if this request is one too many.
    pub wait: Option<Duration>,
}

impl Allowance {
    /// All of it.
    pub fn new(limit: RateLimit) -> Self {
        Self { limit, limiter: RateLimiter::direct(quota(limit)).with_middleware() }
    }

    /// This allowance if it has the same limit, otherwise a new one.
    #[must_use]
    pub fn continued(before: Option<&Arc<Self>>, limit: RateLimit) -> Arc<Self> {
        let same = before.filter(|allowance| allowance.limit == limit);
        same.map_or_else(|| Arc::new(Self::new(limit)), Arc::clone)
    }

    /// Counts a request. One that is refused does not use anything up.
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
    /// How long until nothing is missing any more.
    pub fn restored_in(self) -> Duration {
        let missing = self.limit.requests().get().saturating_sub(self.remaining);
        self.limit.period() / self.limit.requests().get() * missing
    }
}

/// The limit in the words of the limiter: all of it at once, and replenished evenly.
pub fn quota(limit: RateLimit) -> Quota {
    let one = Quota::with_period(limit.period() / limit.requests().get());
    one.expect("a million requests per second leave time for each").allow_burst(limit.requests())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_one_more_is_told_how_long_to_wait() {
        let allowance = Allowance::new("3/h".parse().unwrap());
        for remaining in [2, 1, 0] {
            let balance = allowance.take();
            assert_eq!((balance.remaining, balance.wait), (remaining, None));
        }
        let refused = allowance.take();
        let wait = refused.wait.expect("one too many").as_secs();
        assert!((1_100..=1_200).contains(&wait), "a third of an hour: {wait}");
        assert_eq!(refused.restored_in().as_secs(), 3_600);
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
