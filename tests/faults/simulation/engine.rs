//! The simulated engine: what is durable, who can reach it, and which fault comes next. It keeps the port's
//! promises and no more, and it lets a node see the commits of others later than the port asks for.

use std::{mem, sync::Arc, time::Duration};

use application::{
    Digest, LogAccess,
    log::{codec, commit::Commit, contract},
    ports::{AppendError, CommitId, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version},
};
use harness::Chance;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use super::{
    history,
    journal::{Journal, Tick},
    plan::{Faults, Lie, Outage, Plan, Unfitness},
};

pub(crate) struct Engine {
    pub(crate) journal: Arc<Journal>,
    pub(crate) access: LogAccess,
    read_max: usize,
    pub(crate) lie: Option<Lie>,
    distances: Vec<u64>,
    state: Mutex<State>,
    /// Wakes who waits for a record. Not a `watch`, which wakes its waiters in random order.
    news: Notify,
}

struct State {
    stored: Vec<Stored>,
    chance: Chance,
    faults: Faults,
    /// Until when each node cannot reach the engine.
    away: Vec<Instant>,
    closed: Option<Closed>,
    /// The last position that each node was shown.
    seen: Vec<usize>,
    /// Records whose append was reported as unclear.
    doubted: Vec<CommitId>,
    /// The log and what each node was shown of it, while another one is in its place.
    hidden: Option<(Vec<Stored>, Vec<usize>)>,
    /// Whether the log is called damaged.
    damaged: bool,
}

/// A durable record.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) commit: Commit,
    /// When it became durable.
    pub(crate) at: Tick,
    pub(crate) record: Record,
}

/// The log failed. When it opens again, the record that it failed on is there or not.
struct Closed {
    fault: Fault,
    kept: Option<Record>,
}

impl Engine {
    pub(crate) fn new(plan: &Plan, chance: Chance, journal: Arc<Journal>) -> Arc<Self> {
        let state = State {
            stored: Vec::new(),
            chance,
            faults: plan.faults.clone(),
            away: vec![Instant::now(); plan.nodes],
            closed: None,
            seen: vec![0; plan.nodes],
            doubted: Vec::new(),
            hidden: None,
            damaged: false,
        };
        Arc::new(Self {
            journal,
            access: plan.access,
            read_max: plan.read_max,
            lie: plan.lie,
            distances: plan.distances.clone(),
            news: Notify::new(),
            state: Mutex::new(state),
        })
    }

    /// Everything that the log holds.
    pub(crate) fn stored(&self) -> Vec<Stored> {
        self.state().stored.clone()
    }

    /// How many records whose append was reported as unclear are stored.
    pub(crate) fn doubted_and_stored(&self) -> usize {
        let state = self.state();
        let is_stored = |id: &&CommitId| state.stored.iter().any(|stored| stored.commit.id == **id);
        state.doubted.iter().filter(is_stored).count()
    }

    /// Stores a record that has arrived, if its turn is now.
    pub(crate) fn store(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let state = self.state();
        if let Some(closed) = &state.closed {
            return Err(AppendError::Closed(closed.error()));
        }
        // Nothing of ours fits into another log; if a node thinks so, it has shown that log to its readers.
        if state.hidden.is_some() || expected != state.version() {
            return Err(AppendError::Conflict);
        }
        drop(state);
        self.keep(record);
        Ok(expected.position.next())
    }

    /// The log fails on this record, if it would have stored it.
    pub(crate) fn close(
        &self,
        expected: Version,
        record: &Record,
        keeps: bool,
    ) -> Result<Position, AppendError> {
        let mut state = self.state();
        if expected == state.version() && state.closed.is_none() && state.hidden.is_none() {
            let fault = state.chance.pick(&[Fault::WriteFailed, Fault::Full, Fault::Unreachable]);
            let closed = Closed { fault, kept: keeps.then(|| record.clone()) };
            let error = closed.error();
            state.closed = Some(closed);
            return Err(AppendError::Closed(error));
        }
        drop(state);
        self.store(expected, record)
    }

    /// A process that has the engine in it starts.
    pub(crate) fn start(&self) {
        self.open();
        if self.lie == Some(Lie::ForgetsTheLastRecord) {
            self.state().stored.pop();
        }
    }

    /// Opens a log that failed.
    pub(crate) fn open(&self) {
        let Some(Closed { kept, .. }) = self.state().closed.take() else { return };
        let fate = if kept.is_some() { "there" } else { "gone" };
        self.journal.note(format_args!("the log is open again, what it failed on is {fate}"));
        if let Some(record) = kept {
            self.keep(&record);
        }
    }

    fn keep(&self, record: &Record) {
        let commit = codec::decode(&record.bytes).expect("nodes send sound commits");
        let names: Vec<_> =
            history::pets(&commit).map(|(_, pet)| pet.details.name.as_str().to_owned()).collect();
        let line = format_args!("stored {}: {}", commit.position, names.join(", "));
        let at = self.journal.count("commits", line);
        let state = &mut *self.state();
        let log = state.hidden.as_mut().map_or(&mut state.stored, |(log, _)| log);
        log.push(Stored { commit, at, record: record.clone() });
        self.news.notify_waiters();
    }

    pub(crate) fn read(&self, node: usize, after: Position, bound: ReadBound) -> Vec<StoredRecord> {
        let mut state = self.state();
        let visible = state.visible(node);
        let start = usize::try_from(after.0).expect("tests are small").min(visible);
        let most = bound.records.min(1 + state.chance.index(self.read_max));
        let range = start..visible.min(start + most);
        state.seen[node] = state.seen[node].max(range.end);
        let places = range.clone().map(|place| Position(place as u64 + 1));
        let records = state.stored[range].iter().map(|stored| stored.record.clone());
        let found = places.zip(records);
        found.map(|(position, Record { id, bytes })| StoredRecord { position, id: Some(id), bytes }).collect()
    }

    /// The head as this node sees it, unless the log is closed.
    pub(crate) fn head(&self, node: usize) -> Result<Position, LogError> {
        let mut state = self.state();
        if let Some(closed) = &state.closed {
            return Err(closed.error());
        }
        if state.damaged {
            return Err(Fault::Damaged.error("commits are missing"));
        }
        let visible = state.visible(node);
        state.seen[node] = visible;
        Ok(Position(visible as u64))
    }

    /// Returns the last position, once it is beyond this one.
    pub(crate) async fn beyond(&self, position: Position) -> Position {
        loop {
            let news = self.news.notified();
            let last = Position(self.state().stored.len() as u64);
            if last > position {
                return last;
            }
            news.await;
        }
    }

    /// Records the outcome that a node got for its append.
    pub(crate) fn output(&self, node: usize, record: &Record, outcome: &Result<Position, AppendError>) {
        let mut state = self.state();
        match outcome {
            Ok(position) => {
                let seen = usize::try_from(position.0).expect("tests are small");
                // The response may come from a log that another one has replaced since.
                let State { hidden, seen: shown, .. } = &mut *state;
                let shown = hidden.as_mut().map_or(shown, |(_, shown)| shown);
                shown[node] = shown[node].max(seen);
            }
            Err(AppendError::Unclear(_)) if !state.doubted.contains(&record.id) => {
                state.doubted.push(record.id);
            }
            Err(
                AppendError::Unclear(_)
                | AppendError::Conflict
                | AppendError::NotStored(_)
                | AppendError::Closed(_),
            ) => {}
        }
    }

    pub(crate) fn go_away(&self, outage: &Outage) {
        self.journal.count("outages", format_args!("the engine goes away: {outage:?}"));
        let until = Instant::now() + outage.lasts;
        for (node, away) in self.state().away.iter_mut().enumerate() {
            if outage.node.is_none_or(|only| only == node) {
                *away = until.max(*away);
            }
        }
    }

    /// Makes the log one that must not be written to.
    pub(crate) fn spoil(&self, how: Unfitness) {
        let at = self.journal.count("unfit", format_args!("the log is unfit: {how:?}"));
        let state = &mut *self.state();
        let commits = match how {
            Unfitness::Emptied => 0,
            Unfitness::Replaced(commits) => commits,
            Unfitness::Restored(lost) => {
                let left = state.stored.len().saturating_sub(lost);
                let older = state.stored[..left].to_vec();
                return state.show_instead(older);
            }
            Unfitness::Damaged => {
                state.damaged = true;
                return;
            }
        };
        let mut previous = Digest::of(b"");
        let other = (1..=commits).map(|position| {
            let record = contract::record_after(previous, position);
            previous = Digest::of(&record.bytes);
            let commit = codec::decode(&record.bytes).expect("a commit of another log");
            Stored { commit, at, record }
        });
        let other = other.collect();
        state.show_instead(other);
    }

    /// The right log is back.
    pub(crate) fn unspoil(&self) {
        self.journal.note(format_args!("the log is fit again"));
        let state = &mut *self.state();
        state.damaged = false;
        if let Some((log, seen)) = state.hidden.take() {
            (state.stored, state.seen) = (log, seen);
        }
    }

    pub(crate) fn is_away(&self, node: usize) -> bool {
        Instant::now() < self.state().away[node]
    }

    /// From now on nothing new goes wrong.
    pub(crate) fn heal(&self) {
        self.journal.note(format_args!("the faults end"));
        let mut state = self.state();
        state.faults = Faults::default();
        state.away.fill(Instant::now());
    }

    /// Draws with the rates that are active.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Chance, &Faults) -> T) -> T {
        let state = &mut *self.state();
        draw(&mut state.chance, &state.faults)
    }

    /// How long one way takes: at least a moment, so that nothing happens without time passing.
    pub(crate) fn delay(&self, node: usize) -> Duration {
        let delay = self.draw(|chance, faults| {
            if chance.per_mille(faults.slow) {
                chance.millis(500..=4_000)
            } else {
                chance.millis(1..=1 + faults.delay_max)
            }
        });
        delay + Duration::from_millis(self.distances[node])
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Closed {
    fn error(&self) -> LogError {
        self.fault.error("the log is closed")
    }
}

impl State {
    fn version(&self) -> Version {
        let commit = self.stored.last().map(|stored| stored.commit.id);
        Version { position: Position(self.stored.len() as u64), commit }
    }

    /// Puts another log in the place of the right one.
    fn show_instead(&mut self, other: Vec<Stored>) {
        let log = mem::replace(&mut self.stored, other);
        self.hidden = Some((log, self.seen.clone()));
        let most = self.stored.len();
        self.seen.iter_mut().for_each(|seen| *seen = most.min(*seen));
    }

    /// How much of the log a node is shown: all of it or, now and then, less, but never less than before.
    fn visible(&mut self, node: usize) -> usize {
        let all = self.stored.len();
        if self.chance.per_mille(self.faults.stale) {
            all.saturating_sub(1 + self.chance.index(3)).max(self.seen[node])
        } else {
            all
        }
    }
}
