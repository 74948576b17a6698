//! The headers that show the remainder of a key's rate limit (draft-ietf-httpapi-ratelimit-headers).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_second_is_a_whole_one() {
        for (millis, expected) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(seconds(Duration::from_millis(millis)), expected);
        }
    }
}
