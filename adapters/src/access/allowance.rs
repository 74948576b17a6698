//! The state of a rate limit. A limit of `10/s` allows ten requests at once, and then one every tenth of a second.

use std::{sync::Arc, time::Duration};

use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
    middleware::StateInformationMiddleware,
};

use super::rate_limit::RateLimit;

/// The remaining requests of one client. Taking one costs one read of the clock and one compare-and-swap.
#[derive(Debug)]
pub struct Allowance {
    limit: RateLimit,
    limiter: DefaultDirectRateLimiter<StateInformationMiddleware>,
}

/// The state of an allowance after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// The limit that is enforced.
    pub limit: RateLimit,
    /// The number of requests that may follow at once.
    pub remaining: u32,
    /// How long the client has to wait, if this request is over the limit.
    pub wait: Option<Duration>,
}

impl Allowance {
    /// A full allowance.
    pub fn new(limit: RateLimit) -> Self {
        Self { limit, limiter: RateLimiter::direct(quota(limit)).with_middleware() }
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
    /// The time until the allowance is full again.
    pub fn restored_in(self) -> Duration {
        let missing = self.limit.requests().get().saturating_sub(self.remaining);
        self.limit.period() / self.limit.requests().get() * missing
    }
}

/// The quota of the limiter: the whole limit as a burst, replenished evenly.
pub fn quota(limit: RateLimit) -> Quota {
    let one = Quota::with_period(limit.period() / limit.requests().get());
    one.expect("a million requests per second leave time for each").allow_burst(limit.requests())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_a_request_over_the_limit_gets_the_time_to_wait() {
        let allowance = Allowance::new("3/h".parse().unwrap());
        for remaining in [2, 1, 0] {
            let balance = allowance.take();
            assert_eq!((balance.remaining, balance.wait), (remaining, None));
        }
        let rejected = allowance.take();
        let wait = rejected.wait.expect("over the limit").as_secs();
        assert!((1_100..=1_200).contains(&wait), "a third of an hour: {wait}");
        assert_eq!(rejected.restored_in().as_secs(), 3_600);
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
