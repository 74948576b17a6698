//! What passes between the thread that owns the database and everybody else.

use std::fmt;

use application::ports::{
    AppendError, Durability, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::reader::Reader;

/// A caller that waits for its record to be stored.
pub(super) struct Request {
    pub(super) expected: Version,
    pub(super) record: Record,
    pub(super) reply: oneshot::Sender<Result<Position, AppendError>>,
}

/// What callers on other threads may look at.
pub(super) struct Shared {
    /// `None` while the database is being opened again.
    pub(super) reader: Mutex<Option<Reader>>,
    /// The last position that is durable.
    pub(super) head: watch::Sender<Position>,
    /// Why nothing can be written, if so.
    pub(super) closed: RwLock<Option<LogError>>,
    pub(super) durability: RwLock<Durability>,
}

impl Shared {
    /// A log that is open and ends at `head`.
    pub(super) fn new(reader: Reader, durability: Durability, head: Position) -> Self {
        Self {
            reader: Mutex::new(Some(reader)),
            head: watch::Sender::new(head),
            closed: RwLock::new(None),
            durability: RwLock::new(durability),
        }
    }

    /// Durable records after `after`, within `bound`. A log that cannot be written to still has them.
    pub(super) fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        match &*self.reader.lock() {
            // A row is there a moment before its append has succeeded; nobody may see it earlier than the head.
            Some(reader) => reader.read(after, *self.head.borrow(), bound),
            None => Err(self.closed.read().clone().unwrap_or_else(being_opened)),
        }
    }

    pub(super) fn head(&self) -> Result<Position, LogError> {
        match &*self.closed.read() {
            Some(error) => Err(error.clone()),
            None => Ok(*self.head.borrow()),
        }
    }

    /// Tells when there are later positions.
    pub(super) fn heads(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability.read().clone()
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
