//! What the keeper shares with everybody who asks: the engine to read from, how far it is durable, and what
//! is wrong.

use std::fmt;

use application::ports::{Fault, LogError, Position, ReadBound, StoredRecord};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::engine::Engine;

/// What readers may look at.
pub(super) struct Shared {
    /// `None` while sled is being opened again.
    pub(super) engine: RwLock<Option<Engine>>,
    /// The last position that is durable.
    pub(super) head: watch::Sender<Position>,
    /// Why nothing can be written, if so.
    pub(super) closed: RwLock<Option<LogError>>,
}

impl Shared {
    pub(super) fn new(engine: Engine, head: Position) -> Self {
        Self { engine: RwLock::new(Some(engine)), head: watch::Sender::new(head), closed: RwLock::new(None) }
    }

    /// Durable records after `after`, within `bound`. A failed engine still has them.
    pub(super) fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let engine = self.engine.read();
        let head = *self.head.borrow();
        match &*engine {
            Some(engine) => engine.read(after, head, bound),
            None => Err(self.closed.read().clone().unwrap_or_else(being_opened)),
        }
    }

    /// Wakes those who wait for a write that has failed.
    pub(super) fn nudge(&self) {
        // Recursively: the keeper may be waiting for just those readers who wait to be woken.
        if let Some(engine) = self.engine.try_read_recursive()
            && let Some(engine) = &*engine
        {
            engine.nudge();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("head", &*self.head.borrow()).finish_non_exhaustive()
    }
}

fn being_opened() -> LogError {
    LogError::new(Fault::Unreachable, "the log is being opened again; try again in a moment")
}
