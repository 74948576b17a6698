//! How nodes share a log that accepts one commit at a time. Each append is a race, and the node that is
//! closest to the engine would win all of them; so a node that has written for a while lets the others go
//! first.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    ports::{Position, Version},
    replica::Replica,
};

/// How long a node writes on, at least, while others want to write too.
const TURN: Duration = Duration::from_millis(20);
/// How long it writes on when nobody uses these delays, so that they cost next to nothing.
const TURN_MAX: Duration = Duration::from_secs(8);
/// How long the others have to read what they missed and to append. It ends as soon as one of them did.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);
/// A turn is so many times as long as the delay before it: a node that is far away must not slow down the others.
const TURN_PER_DELAY: u32 = 4;

/// Whose turn it is, as far as one node can tell.
#[derive(Debug)]
pub(crate) struct WriteFairness {
    /// The last commit of this node, and when it was stored.
    last: (Position, Instant),
    /// Since when this node has written without a delay and without anybody in between.
    begun: Instant,
    length: Duration,
}

impl WriteFairness {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { last: (Position::START, now), begun: now, length: TURN_MAX }
    }

    /// Takes note of a commit that was stored right after `base`. If this node has written for long enough, waits
    /// until another one has written, or does not want to.
    pub(crate) async fn stored(&mut self, base: Version, replica: &Replica) {
        let now = Instant::now();
        let (position, stored) = self.last;
        if base.position > position || stored + OTHERS_TIMEOUT < now {
            self.begun = now;
        }
        self.last = (base.position.next(), now);
        if now < self.begun + self.length {
            return;
        }
        let delay = others_wrote(replica).await;
        self.length = match delay {
            Some(delay) => TURN.max(TURN_PER_DELAY * delay),
            None => (2 * self.length).min(TURN_MAX),
        };
        self.begun = Instant::now();
    }
}

/// Waits until another node has written, and tells how long that took; `None` if none did. Whatever goes wrong here
/// meets the next append too, which knows what to do.
async fn others_wrote(replica: &Replica) -> Option<Duration> {
    let version = replica.state.version();
    let begun = Instant::now();
    while let Some(left) = OTHERS_TIMEOUT.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        replica.log.wait_for(version.position, left).await.ok()?;
        // Waiting may end for no reason; and what was stored may not be shown yet.
        if begun.elapsed() < OTHERS_TIMEOUT {
            replica.overtaken(version).await.ok()?;
        }
        if replica.state.version() != version {
            return Some(begun.elapsed());
        }
    }
    None
}
