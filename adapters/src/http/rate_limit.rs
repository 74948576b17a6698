//! The headers that tell a client what is left of its key's rate limit
//! (draft-ietf-httpapi-ratelimit-headers).

use std::{cell::RefCell, time::Duration};

use axum::http::{HeaderMap, HeaderName};

use super::{
    error::Problem,
    header_value::{Last, ValueWriter, remembered},
};
use crate::access::{Balance, RateLimit};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Refuses a request that is one too many.
pub(super) fn check(balance: Balance) -> Result<(), Problem> {
    balance.wait.map_or(Ok(()), |wait| Err(Problem::RateLimited(seconds(wait))))
}

/// Adds the headers: how many requests are left, and the seconds until all of them are there again.
pub(super) fn announce(balance: Balance, headers: &mut HeaderMap) {
    thread_local! {
        static POLICY: Last<RateLimit> = const { RefCell::new(None) };
        static STATE: Last<(u32, u64)> = const { RefCell::new(None) };
    }
    let policy = remembered(&POLICY, balance.limit, |limit| {
        let (requests, seconds) = (limit.requests().get(), limit.period().as_secs());
        ValueWriter::new().text("\"key\";q=").decimal(requests).text(";w=").decimal(seconds).value()
    });
    let state = (balance.remaining, seconds(balance.restored_in()));
    let state = remembered(&STATE, state, |(remaining, seconds)| {
        ValueWriter::new().text("\"key\";r=").decimal(remaining).text(";t=").decimal(seconds).value()
    });
    headers.insert(RATELIMIT_POLICY, policy);
    headers.insert(RATELIMIT, state);
}

/// Whole seconds after which the time has passed.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use crate::access::Allowance;

    use super::*;

    #[test]
    fn the_headers_say_what_is_left() {
        let allowance = Allowance::new("2/m".parse().unwrap());
        for (state, refused) in [("r=1;t=30", false), ("r=0;t=60", false), ("r=0;t=60", true)] {
            let (balance, mut headers) = (allowance.take(), HeaderMap::new());
            announce(balance, &mut headers);
            assert_eq!(headers[RATELIMIT_POLICY], "\"key\";q=2;w=60");
            assert_eq!(headers[RATELIMIT], format!("\"key\";{state}"));
            assert_eq!(check(balance).is_err(), refused);
        }
    }

    #[test]
    fn a_part_of_a_second_is_a_whole_one() {
        for (millis, expected) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(seconds(Duration::from_millis(millis)), expected);
        }
    }
}
