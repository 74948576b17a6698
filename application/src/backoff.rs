//! Delays between failed attempts.

use std::time::Duration;

/// Delays that double with each failure, up to a maximum.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Backoff {
    /// Returns the delay after this many failures in a row.
    pub fn delay(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };
        let delays = [0, 1, 2, 3, 4, 5, u32::MAX].map(|failures| backoff.delay(failures).as_millis());
        assert_eq!(delays, [100, 100, 200, 400, 800, 1_000, 1_000]);
    }
}
