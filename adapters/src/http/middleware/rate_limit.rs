//! Rate limits: the headers that show the remainder of a key's limit (draft-ietf-httpapi-ratelimit-headers), and the limit
//! on failed authentication per client address. A valid key is never rejected by the latter: keys are checked first, and only
//! invalid ones count.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderName};
use governor::{
    DefaultKeyedRateLimiter, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use ipnet::IpNet;
use parking_lot::Mutex;

use super::client_address;
use crate::{
    access::{Balance, RateLimit},
    http::header_value,
};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the headers: the policy, the number of requests that remain, and the seconds after which there is one more at the
/// latest. Over the limit, these are the seconds of `Retry-After`.
pub(crate) fn add_headers(balance: Balance, headers: &mut HeaderMap) {
    let RateLimit { requests, period, .. } = balance.limit;
    let policy = format!("\"key\";q={requests};w={}", period.as_secs());
    headers.insert(RATELIMIT_POLICY, header_value(policy));
    let state = format!("\"key\";r={};t={}", balance.remaining, seconds(balance.next_in()));
    headers.insert(RATELIMIT, header_value(state));
}

/// A duration in seconds, rounded up.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The maximum number of clients in the table. While it is full, all clients share one count.
const CLIENTS_MAX: usize = 10_000;

/// The shortest interval between two removals of expired counts, which happen only when the table is full.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct FailedAuth {
    clients: DefaultKeyedRateLimiter<IpNet>,
    cleaned: Mutex<Option<Instant>>,
}

impl FailedAuth {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self { clients: RateLimiter::keyed(limit.quota()), cleaned: Mutex::default() }
    }

    /// Counts an invalid key. Over the limit, the error is the time to wait.
    pub(crate) fn count(&self, address: IpAddr) -> Result<(), Duration> {
        let all_clients = IpNet::default();
        let client = if self.has_capacity() { client_address::network(address) } else { all_clients };
        self.clients.check_key(&client).map_err(|until| until.wait_time_from(DefaultClock::default().now()))
    }

    fn has_capacity(&self) -> bool {
        if self.clients.len() < CLIENTS_MAX {
            return true;
        }
        let mut cleaned = self.cleaned.lock();
        if cleaned.is_none_or(|cleaned| cleaned.elapsed() >= CLEANUP_INTERVAL) {
            self.clients.retain_recent();
            *cleaned = Some(Instant::now());
        }
        self.clients.len() < CLIENTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn memory_is_bounded_however_many_clients_there_are() {
        let wrong_keys = FailedAuth::new("2/h".parse().unwrap());
        let most = u32::try_from(CLIENTS_MAX).unwrap();
        let rejected = (0..2 * most).filter(|number| wrong_keys.count(client(*number)).is_err()).count();
        assert!(wrong_keys.clients.len() <= CLIENTS_MAX + 1);
        assert_eq!(rejected, CLIENTS_MAX - 2, "those beyond share a count of two");
    }

    #[test]
    fn clients_that_have_waited_long_enough_are_forgotten() {
        let wrong_keys = FailedAuth::new("1000000/s".parse().unwrap());
        for number in 0..u32::try_from(CLIENTS_MAX).unwrap() {
            wrong_keys.count(client(number)).unwrap();
        }
        wrong_keys.count(client(u32::MAX)).unwrap();
        assert!(wrong_keys.clients.len() < CLIENTS_MAX, "{}", wrong_keys.clients.len());
    }

    #[test]
    fn a_part_of_a_second_is_a_whole_one() {
        for (millis, expected) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(seconds(Duration::from_millis(millis)), expected);
        }
    }
}
