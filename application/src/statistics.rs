//! Counters of the writer and the follower, for metrics. Plain atomics: counting never blocks.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::log::commit::Position;

/// A histogram with fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One count per bound, and one for values above all bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Bounds for the time of a commit on a disk or a server, in microseconds.
    pub const STORAGE_MICROS: &'static [u64] =
        &[100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

    /// An empty histogram with these bounds, which ascend.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn observe(&self, value: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts a time, in microseconds.
    pub fn observe_micros(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// The sum of all values, and the upper bound of each bucket with the number of values in it, divided by `scale`.
    pub fn read(&self, scale: f64) -> (f64, Vec<(f64, u64)>) {
        #[expect(clippy::cast_precision_loss, reason = "a rounded sum is precise enough")]
        let scaled = |value: u64| value as f64 / scale;
        let bounds = self.bounds.iter().map(|bound| scaled(*bound)).chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        (scaled(self.sum.load(Relaxed)), bounds.zip(counts).collect())
    }
}

/// Counters of one node since startup.
#[derive(Debug)]
pub struct Statistics {
    /// Events in each stored commit.
    pub commit_events: Histogram,
    /// Bytes of each stored commit.
    pub commit_bytes: Histogram,
    /// The time to store or reject a commit, in microseconds.
    pub append_micros: Histogram,
    /// Appends that the log rejected because another node had appended first.
    pub conflicts: AtomicU64,
    /// Appends that were sent again because their outcome was unclear.
    pub retries: AtomicU64,
    /// How often the log lacked commits that this node had applied.
    pub rejected_logs: AtomicU64,
    /// The last known position of the log.
    head: AtomicU64,
    /// When the head was last confirmed.
    confirmed: Mutex<Instant>,
}

impl Statistics {
    /// The log responded with this head.
    pub(crate) fn seen(&self, head: Position) {
        self.head.store(head.0, Relaxed);
    }

    /// The log stored a commit of this node at this position. Other nodes may have appended after it.
    pub(crate) fn stored(&self, position: Position) {
        self.head.fetch_max(position.0, Relaxed);
        self.confirm();
    }

    /// Records that this node has read the log up to its head, or that the log responded with an error.
    pub(crate) fn confirm(&self) {
        *self.confirmed.lock() = Instant::now();
    }

    /// The last known position of the log.
    pub(crate) fn head(&self) -> Position {
        Position(self.head.load(Relaxed))
    }

    /// The time since the head was last confirmed. The readiness of a node on a shared log depends on it.
    pub fn unseen_for(&self) -> Duration {
        self.confirmed.lock().elapsed()
    }
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            commit_events: Histogram::new(&[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]),
            commit_bytes: Histogram::new(&[256, 512, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576]),
            append_micros: Histogram::new(Histogram::STORAGE_MICROS),
            conflicts: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            rejected_logs: AtomicU64::new(0),
            head: AtomicU64::new(0),
            confirmed: Mutex::new(Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::new(&[10, 20]);
        for value in [0, 10, 11, 20, 21] {
            histogram.observe(value);
        }
        assert_eq!(histogram.read(10.0), (6.2, vec![(1.0, 2), (2.0, 2), (f64::INFINITY, 1)]));
    }
}
