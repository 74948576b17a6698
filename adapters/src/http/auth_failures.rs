//! Counts requests without a valid key, by what was wrong.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Everything that can be wrong with a key.
const REASONS: [&str; 5] = ["missing", "malformed", "unknown", "expired", "revoked"];

#[derive(Default)]
pub(super) struct AuthFailures([AtomicU64; REASONS.len()]);

impl AuthFailures {
    pub(super) fn count(&self, reason: &str) {
        let found = REASONS.iter().position(|known| *known == reason);
        self.0[found.expect("the list is complete")].fetch_add(1, Relaxed);
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.0.iter().map(|count| count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use application::{KeyId, RefusedKey};

    use super::*;
    use crate::http::error::Problem;

    #[test]
    fn every_refusal_is_counted() {
        let (failures, id) = (AuthFailures::default(), KeyId("1".into()));
        let refused = [RefusedKey::Unknown, RefusedKey::Expired(id.clone()), RefusedKey::Revoked(id)];
        let problems = [Problem::MissingKey, Problem::InvalidKey].into_iter();
        for problem in problems.chain(refused.map(Problem::RefusedKey)) {
            failures.count(problem.refusal().expect("a reason"));
        }
        assert!(failures.counts().all(|(_, count)| count == 1));
    }
}
