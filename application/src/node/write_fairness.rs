//! Fairness between nodes that share a log. Each append is a race, and the node closest to the engine would win all of
//! them. So a node that has written for a while lets the others write first.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    node::replica::Replica,
    ports::{Position, Version},
};

/// The shortest turn of a node while other nodes write too.
const TURN: Duration = Duration::from_millis(20);
/// The longest turn. Turns grow while no other node uses the breaks, so that breaks cost almost nothing.
const TURN_MAX: Duration = Duration::from_secs(8);
/// The longest break, in which other nodes can catch up and append. It ends as soon as one of them has.
const BREAK_MAX: Duration = Duration::from_millis(100);
/// The length of a turn relative to the break before it: a node that is far away must not slow down the others.
const TURN_PER_BREAK: u32 = 4;

/// The turn of one node.
#[derive(Debug)]
pub(crate) struct WriteFairness {
    /// The last commit of this node, and when it was stored.
    last: (Position, Instant),
    /// When this turn began: after the last break or commit of another node.
    begun: Instant,
    length: Duration,
}

impl WriteFairness {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { last: (Position::START, now), begun: now, length: TURN_MAX }
    }

    /// Called after a commit was stored right after `base`. At the end of a turn, waits until another node has written,
    /// or for the longest break.
    pub(crate) async fn stored(&mut self, base: Version, replica: &Replica) {
        let now = Instant::now();
        let (position, stored) = self.last;
        if base.position > position || stored + BREAK_MAX < now {
            self.begun = now;
        }
        self.last = (base.position.next(), now);
        if now < self.begun + self.length {
            return;
        }
        self.length = match wait_for_others(replica).await {
            Some(waited) => TURN.max(TURN_PER_BREAK * waited),
            None => (2 * self.length).min(TURN_MAX),
        };
        self.begun = Instant::now();
    }
}

/// Waits until another node has written, and returns how long that took, or `None` after the longest break. The next
/// append handles errors.
async fn wait_for_others(replica: &Replica) -> Option<Duration> {
    let version = replica.state.version();
    let begun = Instant::now();
    while let Some(left) = BREAK_MAX.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        replica.log.wait_for(version.position, left).await.ok()?;
        // A wait may end early, and the commit may not be visible yet.
        if begun.elapsed() < BREAK_MAX {
            replica.overtaken(version).await.ok()?;
        }
        if replica.state.version() != version {
            return Some(begun.elapsed());
        }
    }
    None
}
