//! The random number generator of the simulation and of the crash suite: splitmix64, written out here so that a seed
//! means the same run with any version of any crate.

use std::{ops::RangeInclusive, time::Duration};

/// A stream of numbers that look random and depend on the seed alone.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// Starts a stream.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate stream for another part of the run: what one part draws does not shift the others.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of the numbers in the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }

    /// A place in something that has so many.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next() % len as u64).expect("a place is smaller than a length")
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// True so many times in a thousand.
    pub fn per_mille(&mut self, rate: u64) -> bool {
        self.next() % 1_000 < rate
    }

    /// A duration in this range of milliseconds.
    pub fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// A duration shorter than `limit`.
    pub fn moment(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).expect("moments are short");
        Duration::from_micros(self.next() % micros)
    }
}
