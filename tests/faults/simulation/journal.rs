//! What happened in a run, in order: the logical clock, a line for every event, and a hash over all lines,
//! which shows whether two runs of one seed are the same.

use std::{
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::AddAssign,
    sync::{Mutex, MutexGuard, PoisonError},
};

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
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) creates: u64,
    pub(crate) acknowledged: u64,
    pub(crate) replayed: u64,
    pub(crate) rejected: u64,
    pub(crate) lost: u64,
    pub(crate) reads: u64,
    pub(crate) commits: u64,
    pub(crate) unclear: u64,
    pub(crate) unclear_landed: u64,
    pub(crate) conflicts: u64,
    pub(crate) closed: u64,
    pub(crate) restarts: u64,
    pub(crate) outages: u64,
    pub(crate) unfit: u64,
}

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

    /// Writes a line and counts something.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Tally), line: fmt::Arguments<'_>) -> Tick {
        count(&mut self.pages().tally);
        self.note(line)
    }

    /// How long the run has lasted, on the simulated clock.
    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).expect("a run takes minutes")
    }

    pub(crate) fn hash(&self) -> u64 {
        self.pages().hash.finish()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.pages().tally
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.pages().lines.clone()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.creates += other.creates;
        self.acknowledged += other.acknowledged;
        self.replayed += other.replayed;
        self.rejected += other.rejected;
        self.lost += other.lost;
        self.reads += other.reads;
        self.commits += other.commits;
        self.unclear += other.unclear;
        self.unclear_landed += other.unclear_landed;
        self.conflicts += other.conflicts;
        self.closed += other.closed;
        self.restarts += other.restarts;
        self.outages += other.outages;
        self.unfit += other.unfit;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} creates ({} acknowledged, {} of them replayed; {} rejected, {} lost), {} reads, {} commits, {} unclear outcomes \
             ({} had landed), {} conflicts, {} closed logs, {} outages, {} unfit \
             logs, {} restarts",
            self.creates,
            self.acknowledged,
            self.replayed,
            self.rejected,
            self.lost,
            self.reads,
            self.commits,
            self.unclear,
            self.unclear_landed,
            self.conflicts,
            self.closed,
            self.outages,
            self.unfit,
            self.restarts,
        )
    }
}
