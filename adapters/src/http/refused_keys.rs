//! Logs refused keys: one line for each, with the reason, up to a maximum number of lines per second. The
//! client learns only that the key is not valid.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
};

use application::RefusedKey;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Enough to see who is locked out, too little to fill a disk.
const LINES_PER_SECOND_MAX: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");

pub(super) struct RefusedKeys {
    limiter: DefaultDirectRateLimiter,
    /// How many lines were left out since the last one.
    left_out: AtomicU64,
}

impl RefusedKeys {
    pub(super) fn log(&self, refused: &RefusedKey) {
        if self.limiter.check().is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let (reason, key) = match refused {
            RefusedKey::Unknown => ("unknown", None),
            RefusedKey::Expired(key) => ("expired", Some(key)),
            RefusedKey::Revoked(key) => ("revoked", Some(key)),
        };
        tracing::info!(reason, key = key.map(tracing::field::display), left_out, "refused an API key");
    }
}

impl Default for RefusedKeys {
    fn default() -> Self {
        let limiter = RateLimiter::direct(Quota::per_second(LINES_PER_SECOND_MAX));
        Self { limiter, left_out: AtomicU64::new(0) }
    }
}
