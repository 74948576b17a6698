//! How many wrong keys may come from one client before they get 429. A right key is never held up: keys are looked at
//! first, and only wrong ones are counted.

use std::time::{Duration, Instant};

use governor::{
    DefaultKeyedRateLimiter, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use parking_lot::Mutex;

use super::client_address::Network;
use crate::access::{RateLimit, quota};

/// How many clients are counted at the same time. Those beyond share one count.
const CLIENTS_MAX: usize = 10_000;

/// How often clients that have sent no wrong key for long enough are forgotten, when there is no room.
const TIDY_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct WrongKeys {
    clients: DefaultKeyedRateLimiter<Network>,
    tidied: Mutex<Option<Instant>>,
}

impl WrongKeys {
    pub(super) fn new(limit: RateLimit) -> Self {
        Self { clients: RateLimiter::keyed(quota(limit)), tidied: Mutex::default() }
    }

    /// Counts a wrong key. If it is one too many, the error says how long to wait.
    pub(super) fn count(&self, client: Network) -> Result<(), Duration> {
        let client = if self.has_room() { client } else { Network::ALL_OTHERS };
        self.clients.check_key(&client).map_err(|until| until.wait_time_from(DefaultClock::default().now()))
    }

    fn has_room(&self) -> bool {
        if self.clients.len() < CLIENTS_MAX {
            return true;
        }
        let mut tidied = self.tidied.lock();
        if tidied.is_none_or(|tidied| tidied.elapsed() >= TIDY_PAUSE) {
            self.clients.retain_recent();
            *tidied = Some(Instant::now());
        }
        self.clients.len() < CLIENTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(number: u32) -> Network {
        Network::of(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    #[test]
    fn each_client_has_its_own_count() {
        let wrong_keys = WrongKeys::new("2/h".parse().unwrap());
        assert_eq!([(); 2].map(|()| wrong_keys.count(client(1))), [Ok(()), Ok(())]);
        assert!(wrong_keys.count(client(1)).unwrap_err() > Duration::from_mins(29));
        assert_eq!(wrong_keys.count(client(2)), Ok(()));
    }

    #[test]
    fn memory_is_bounded_however_many_clients_there_are() {
        let wrong_keys = WrongKeys::new("2/h".parse().unwrap());
        let most = u32::try_from(CLIENTS_MAX).unwrap();
        let refused = (0..2 * most).filter(|number| wrong_keys.count(client(*number)).is_err()).count();
        assert!(wrong_keys.clients.len() <= CLIENTS_MAX + 1);
        assert_eq!(refused, CLIENTS_MAX - 2, "those beyond share a count of two");
    }

    #[test]
    fn clients_that_have_waited_long_enough_are_forgotten() {
        let wrong_keys = WrongKeys::new("1000000/s".parse().unwrap());
        for number in 0..u32::try_from(CLIENTS_MAX).unwrap() {
            wrong_keys.count(client(number)).unwrap();
        }
        wrong_keys.count(client(u32::MAX)).unwrap();
        assert!(wrong_keys.clients.len() < CLIENTS_MAX, "{}", wrong_keys.clients.len());
    }
}
