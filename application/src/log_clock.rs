//! The log clock: the time that expiry runs on, derived from the commits alone, so that every node and every replay
//! agree on it.
//!
//! The times in the commits come from clocks that may be wrong. The log clock adds up how much time has
//! passed on them and ignores the time they show: a clock that is a day ahead, and stays a day ahead,
//! measures an hour as well as a correct one. A jump of a clock counts for one [`STEP`](LogClock::STEP) at
//! most. After a long pause the log clock is behind, and things are remembered for longer: it can be wrong in
//! this direction only.

use chrono::{DateTime, TimeDelta, Utc};

use crate::commit::{NodeId, Position};

/// How many nodes are remembered. More than ever write at a time.
const NODES_MAX: usize = 64;
/// A node that has not written for so many commits no longer counts as a witness.
const WITNESS_COMMITS: u64 = 1_024;

/// The time of the log after some commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogClock {
    now: DateTime<Utc>,
    /// The latest time that any commit tells.
    newest: DateTime<Utc>,
    /// The nodes that wrote most recently, the last one at the end.
    nodes: Vec<Node>,
}

/// A node as its commits show it.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// `None` stands for all nodes that write version 1, which does not tell them apart.
    id: Option<NodeId>,
    /// Its last commit.
    position: Position,
    /// The latest time that it told.
    reading: DateTime<Utc>,
    /// The log clock after its last commit.
    time: DateTime<Utc>,
}

impl LogClock {
    /// How far one commit, or one node that no other confirms, may put the clock ahead.
    pub(crate) const STEP: TimeDelta = TimeDelta::minutes(10);

    /// The latest time that any commit tells.
    pub(crate) fn newest(&self) -> DateTime<Utc> {
        self.newest
    }

    /// What the clock will be after the next commit, if this node makes it at `time`.
    pub(crate) fn after(
        &self,
        position: Position,
        node: Option<NodeId>,
        time: DateTime<Utc>,
    ) -> DateTime<Utc> {
        if self.nodes.is_empty() {
            return time;
        }
        let at_most_a_step = |passed: TimeDelta| passed.clamp(TimeDelta::zero(), Self::STEP);
        let measured = match self.nodes.iter().find(|known| known.id == node) {
            Some(known) => known.time + at_most_a_step(time - known.reading),
            None => self.now + at_most_a_step(time - self.newest),
        };
        let witnesses = self
            .nodes
            .iter()
            .filter(|other| other.id != node && other.position.0 + WITNESS_COMMITS >= position.0);
        let confirmed = witnesses.map(|other| other.time + Self::STEP).max();
        self.now.max(confirmed.map_or(measured, |confirmed| measured.min(confirmed)))
    }

    /// Takes note of the next commit, and returns the time of the log after it.
    pub(crate) fn advance(
        &mut self,
        position: Position,
        node: Option<NodeId>,
        time: DateTime<Utc>,
    ) -> DateTime<Utc> {
        self.now = self.after(position, node, time);
        self.newest = if self.nodes.is_empty() { time } else { self.newest.max(time) };
        let known = self.nodes.iter().position(|known| known.id == node).map(|at| self.nodes.remove(at));
        let reading = known.map_or(time, |known| known.reading.max(time));
        if self.nodes.len() == NODES_MAX {
            self.nodes.remove(0);
        }
        self.nodes.push(Node { id: node, position, reading, time: self.now });
        self.now
    }
}

#[cfg(test)]
mod tests;
