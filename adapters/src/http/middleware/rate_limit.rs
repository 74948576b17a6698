//! The headers that show the remainder of a key's rate limit (draft-ietf-httpapi-ratelimit-headers).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

use crate::{access::Balance, http::header_value};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the headers: the number of requests that remain, and the seconds until the full number is restored.
pub(crate) fn announce(balance: Balance, headers: &mut HeaderMap) {
    let (requests, window) = (balance.limit.requests().get(), balance.limit.period().as_secs());
    let (remaining, restored) = (balance.remaining, seconds(balance.restored_in()));
    let (mut one, mut two) = (itoa::Buffer::new(), itoa::Buffer::new());
    let policy = ["\"key\";q=", one.format(requests), ";w=", two.format(window)].concat();
    let state = ["\"key\";r=", one.format(remaining), ";t=", two.format(restored)].concat();
    headers.insert(RATELIMIT_POLICY, header_value(policy));
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
