//! What happened in a run, in order: the logical clock, a line for every event, and a hash over all lines,
//! which shows whether two runs of one seed are the same.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// A moment of the logical clock: later things have higher numbers, and no two things have the same.
pub(crate) type Tick = u64;

pub(crate) struct Journal {
    start: Instant,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    tick: Tick,
    hash: DefaultHasher,
    lines: Vec<String>,
    tally: Tally,
}

/// How often things happened.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

impl Journal {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), pages: Mutex::default() }
    }

    /// Writes a line. It must hold nothing that differs between two runs of a seed, such as commit ids.
    pub(crate) fn note(&self, line: fmt::Arguments<'_>) -> Tick {
        let millis = self.millis();
        let mut pages = self.pages();
        pages.tick += 1;
        let line = format!("{:>4} {millis:>6} ms  {line}", pages.tick);
        line.hash(&mut pages.hash);
        pages.lines.push(line);
        pages.tick
    }

    /// Writes a line and counts an event.
    pub(crate) fn count(&self, event: &'static str, line: fmt::Arguments<'_>) -> Tick {
        self.add(event, 1);
        self.note(line)
    }

    /// Counts events.
    pub(crate) fn add(&self, event: &'static str, count: u64) {
        *self.pages().tally.entry(event).or_default() += count;
    }

    /// How long the run has lasted, on the simulated clock.
    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).expect("a run takes minutes")
    }

    pub(crate) fn hash(&self) -> u64 {
        self.pages().hash.finish()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.pages().tally.clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.pages().lines.clone()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock()
    }
}
