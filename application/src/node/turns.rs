//! The order in which nodes that share a log append. Of several appends at one position only one is stored, so nodes
//! that write at the same time take turns. They exchange no messages: every commit names its author, and every node sees
//! all commits in the same order.
//!
//! - Nodes that write are in a ring, in the order of their ids. After a commit, each of them waits one slot for every node
//!   between the author and itself. Any commit restarts this. A node that does not use its slot leaves the ring.
//! - A node outside the ring appends in a break of the ring, or when no commit has arrived for longer than usual. Then it
//!   is in the ring. The first commit of a node is followed by another break, so that nodes that begin together all join.
//! - Now and then the ring takes a short break. More rarely it takes a long one, for nodes that are too distant for a short
//!   one.
//!
//! A turn is only an optimisation. A node with a different view of the order causes a conflict, never a wrong commit.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::Bound,
    time::Duration,
};

use tokio::time::Instant;

use crate::{log::commit::NodeId, ports::Position};

/// How often a node that does not wait for its turn reads the commits of others. To read each of them as soon as it is stored
/// would cost the engine and this node as much as to write it.
pub(crate) const READ_INTERVAL: Duration = Duration::from_millis(20);

/// The length of a slot relative to the usual time between commits.
const SLOT_GAPS: u32 = 3;
const SLOT_MIN: Duration = Duration::from_millis(1);
const SLOT_MAX: Duration = Duration::from_secs(2);
/// A node is remembered for two rounds after its last commit, within these limits.
const MEMORY_MIN: Duration = Duration::from_secs(1);
const MEMORY_MAX: Duration = Duration::from_mins(1);
/// Regular breaks follow only commits whose position is a multiple of this.
const BLOCK: u64 = 16;
/// The minimum time between two breaks: while no node uses them, and while one does. The actual time is up to twice as long,
/// and at least two blocks.
const BREAK_INTERVAL: Duration = Duration::from_millis(400);
const USED_BREAK_INTERVAL: Duration = Duration::from_millis(150);
/// One of this many breaks is long.
const LONG_BREAK_RATIO: u64 = 4;
const LONG_BREAK: Duration = Duration::from_millis(60);
/// A node that has waited this long may be too distant for short breaks.
const FAR_WAIT: Duration = Duration::from_millis(250);
/// How long the use of a break makes the next ones more frequent.
const USE_MEMORY: Duration = Duration::from_secs(2);
/// How long a node waits for its turn, well below the timeout of a client.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);

/// The commits that one node has seen, and the turns that follow from them. Commits of a replay do not count.
#[derive(Debug)]
pub(crate) struct Turns {
    me: NodeId,
    newest: Option<Arrival>,
    /// The nodes that have written lately.
    authors: BTreeMap<NodeId, Author>,
    /// The usual time in which an append of this node is stored.
    append: Duration,
    /// The usual time between commits of other nodes, while this node waits.
    gap: Duration,
    /// Since when this node has had requests for its next commit, if it has any.
    waiting_since: Option<Instant>,
    /// How many races this node has lost since its last commit.
    lost: u32,
    /// When the last block of commits ended.
    block_end: Instant,
    /// When a node outside the ring last used a break.
    break_use: Option<Instant>,
}

/// The newest commit.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    position: Position,
    author: NodeId,
    at: Instant,
    followed_by: Option<Break>,
}

/// A time after a commit in which the nodes of the ring do not append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    /// One and a half slots, because nodes are not equally far from the engine.
    Short,
    /// For a distant node.
    Long,
}

/// A node that has written.
#[derive(Debug, Clone, Copy)]
struct Author {
    last: Instant,
    is_in_ring: bool,
}

impl Turns {
    pub(crate) fn new(me: NodeId, now: Instant) -> Self {
        Self {
            me,
            newest: None,
            authors: BTreeMap::new(),
            append: Duration::ZERO,
            gap: Duration::ZERO,
            waiting_since: None,
            lost: 0,
            block_end: now,
            break_use: None,
        }
    }

    /// This node has requests for its next commit. Returns whether it had none before.
    pub(crate) fn begin_waiting(&mut self, now: Instant) -> bool {
        let begins = self.waiting_since.is_none();
        self.waiting_since.get_or_insert(now);
        begins
    }

    /// This node has no requests for a commit.
    pub(crate) fn stop_waiting(&mut self) {
        self.waiting_since = None;
    }

    /// This node has stored a commit, which took this long.
    pub(crate) fn stored(&mut self, position: Position, took: Duration, now: Instant) {
        learn(&mut self.append, took);
        self.arrived(position, self.me, now);
        self.stop_waiting();
        self.lost = 0;
    }

    /// Another node has stored a commit at the position of this node's commit. To find that out took this long.
    pub(crate) fn overtaken(&mut self, took: Duration) {
        learn(&mut self.append, took);
        self.lost += 1;
        if self.lost > 1 {
            // The others have probably dropped this node from their rings.
            self.leave_ring(self.me);
        }
    }

    /// This node has applied a commit while it followed the log.
    pub(crate) fn arrived(&mut self, position: Position, author: NodeId, at: Instant) {
        if self.newest.is_some_and(|newest| position <= newest.position) {
            return;
        }
        if let Some(newest) = self.newest {
            self.observe(newest, author, at);
        }
        let memory = (2 * self.ring_size() * self.slot()).clamp(MEMORY_MIN, MEMORY_MAX);
        self.authors.retain(|_, author| author.last + memory >= at);
        let is_new = self.authors.insert(author, Author { last: at, is_in_ring: true }).is_none();
        let followed_by = self.break_after(position, at).or(is_new.then_some(Break::Short));
        self.newest = Some(Arrival { position, author, at, followed_by });
    }

    /// How long this node waits for its turn: less after each race that it has lost, so that a client is not kept waiting by
    /// a few long waits.
    pub(crate) fn timeout(&self) -> Duration {
        TURN_TIMEOUT / (1 + self.lost)
    }

    /// When this node may append. `None` is at once.
    pub(crate) fn due(&self) -> Option<Instant> {
        let newest = self.newest?;
        let wait = if self.is_in_ring() {
            let before = self.ring_after(newest.author).take_while(|node| *node != self.me).count();
            self.length(newest.followed_by) + self.slot() * u32::try_from(before).unwrap_or(u32::MAX)
        } else if newest.author == self.me {
            self.length(newest.followed_by)
        } else {
            self.outside_wait(newest)
        };
        Some(newest.at + wait)
    }

    /// Whether the newest commit is one of this node.
    pub(crate) fn wrote_newest(&self) -> bool {
        self.newest.is_some_and(|newest| newest.author == self.me)
    }

    fn leave_ring(&mut self, node: NodeId) {
        if let Some(author) = self.authors.get_mut(&node) {
            author.is_in_ring = false;
        }
    }

    fn is_in_ring(&self) -> bool {
        self.authors.get(&self.me).is_some_and(|author| author.is_in_ring)
    }

    /// The nodes of the ring in order, from the one after this author to the author.
    fn ring_after(&self, author: NodeId) -> impl Iterator<Item = NodeId> {
        let later = self.authors.range((Bound::Excluded(author), Bound::Unbounded));
        let all = later.chain(self.authors.range(..=author));
        all.filter(|(_, author)| author.is_in_ring).map(|(node, _)| *node)
    }

    /// The number of nodes in the ring.
    fn ring_size(&self) -> u32 {
        let size = self.authors.values().filter(|author| author.is_in_ring).count();
        u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// Whether this node waits for a break of the only node in the ring, and no regular one can follow this commit.
    fn skips(&self, position: Position) -> bool {
        let is_outside = self.waiting_since.is_some() && !self.is_in_ring();
        is_outside && self.ring_size() == 1 && !position.0.is_multiple_of(BLOCK)
    }

    /// The next commit that can change when this node may append.
    pub(crate) fn next_relevant(&self, known: Position) -> Position {
        let next = known.next();
        if self.skips(known) { Position(next.0.next_multiple_of(BLOCK)) } else { next }
    }

    /// How long a node outside the ring waits: until the next break, or until the others are silent for longer than usual.
    /// It waits less after several lost races. Of many nodes that wake together, few choose the same time.
    fn outside_wait(&self, newest: Arrival) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.me, newest.position).hash(&mut hasher);
        let choices = u64::from(self.lost) + 4;
        let jitter = self.slot() / 12 * u32::try_from(hasher.finish() % choices).unwrap_or(u32::MAX);
        let quiet_time = self.slot() / 12 * 8 / self.lost.max(1);
        let may_be_distant = self.waiting_since.is_some_and(|since| since + FAR_WAIT <= newest.at);
        let ends_block = newest.position.0.is_multiple_of(BLOCK);
        match newest.followed_by {
            // The others may have begun a long break that this node does not know of.
            _ if may_be_distant && ends_block => Duration::ZERO,
            Some(Break::Short) => jitter,
            Some(Break::Long) => LONG_BREAK + quiet_time + jitter,
            // A skipped commit is read late.
            None if self.skips(newest.position) => READ_INTERVAL + quiet_time + jitter,
            None => quiet_time + jitter,
        }
    }

    /// Learns from the time between two commits.
    fn observe(&mut self, previous: Arrival, author: NodeId, at: Instant) {
        let silence = at - previous.at;
        let known = self.authors.get(&author);
        let break_length = self.length(previous.followed_by);
        if silence < break_length && known.is_none_or(|known| !known.is_in_ring) {
            self.break_use = Some(at);
        }
        // A node that does not wait reads commits late, so the times are not measured.
        let Some(waiting_since) = self.waiting_since else { return };
        let waited = at.saturating_duration_since((previous.at + break_length).max(waiting_since));
        let slots = usize::try_from(waited.as_nanos() / self.slot().as_nanos()).unwrap_or(usize::MAX);
        let passed = self.ring_after(previous.author).take_while(|node| *node != author);
        for node in passed.take(slots).collect::<Vec<_>>() {
            self.leave_ring(node);
        }
        let gap = silence.saturating_sub(break_length);
        let is_known = !gap.is_zero() && !self.skips(previous.position);
        if is_known && waiting_since <= previous.at && author != self.me {
            learn(&mut self.gap, gap);
        }
    }

    /// Whether the ring takes a break after this commit. All nodes measure the time between the same commits, and round
    /// it, so that most of the time they agree.
    fn break_after(&mut self, position: Position, at: Instant) -> Option<Break> {
        if !position.0.is_multiple_of(BLOCK) {
            return None;
        }
        let took = at - self.block_end;
        self.block_end = at;
        let is_used = self.break_use.is_some_and(|used| at < used + USE_MEMORY);
        let interval = if is_used { USED_BREAK_INTERVAL } else { BREAK_INTERVAL };
        let blocks = (interval.as_nanos() / took.as_nanos().max(1)).next_power_of_two().max(2);
        let block = u128::from(position.0 / BLOCK);
        if !block.is_multiple_of(blocks) {
            None
        } else if block.is_multiple_of(blocks * u128::from(LONG_BREAK_RATIO)) {
            Some(Break::Long)
        } else {
            Some(Break::Short)
        }
    }

    fn length(&self, of: Option<Break>) -> Duration {
        match of {
            None => Duration::ZERO,
            Some(Break::Short) => self.slot() * 3 / 2,
            Some(Break::Long) => LONG_BREAK,
        }
    }

    fn slot(&self) -> Duration {
        (SLOT_GAPS * self.append.max(self.gap)).clamp(SLOT_MIN, SLOT_MAX)
    }
}

/// Moves a running estimate of the median towards an observation.
fn learn(median: &mut Duration, observed: Duration) {
    *median = match *median {
        Duration::ZERO => observed,
        lower if lower < observed => lower + lower / 8,
        _ => *median / 8 * 7,
    };
}
