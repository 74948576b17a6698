//! What the thread that owns an engine shares with all others: the engine to read from, how far it is
//! durable, and why it cannot be written to, if so.

use std::sync::Arc;

use application::{
    Histogram,
    ports::{Durability, DurabilityLevel, Fault, LogError, Position, ReadBound, StorageStats, StoredRecord},
};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::{engine::Engine, layout::Layout, reading::read_within};

const PROMISE: &str = "every acknowledged commit is on this machine's disk: it survives kill -9 and power cuts, \
                       provided that the disk keeps what it reports as synced";

/// What an engine promises of a store.
pub(super) fn durability_of<E: Engine>(engine: &E, layout: &Layout) -> Durability {
    let store = ("store", layout.path.display().to_string());
    let mark = ("high-water mark", "written with every commit, synced every second".to_owned());
    let settings = engine.durability_settings().into_iter().chain([store, mark]);
    Durability {
        engine: E::NAME,
        level: DurabilityLevel::Synced,
        promise: PROMISE.into(),
        settings: settings.map(|(setting, value)| (setting.to_owned(), value)).collect(),
    }
}

/// What other threads may look at.
pub(super) struct SharedEngine<E> {
    /// `None` while the log is being opened again.
    pub(super) engine: RwLock<Option<E>>,
    /// The last position that is durable.
    pub(super) head: watch::Sender<Position>,
    /// Why nothing can be written, if so.
    pub(super) closed: RwLock<Option<LogError>>,
    pub(super) durability: Durability,
    pub(super) sync_micros: Arc<Histogram>,
    /// As they were measured last.
    pub(super) storage_stats: RwLock<StorageStats>,
}

impl<E: Engine> SharedEngine<E> {
    pub(super) fn new(engine: E, layout: &Layout, head: Position) -> Self {
        let durability = durability_of(&engine, layout);
        let engine = RwLock::new(Some(engine));
        let sync_micros = Arc::new(Histogram::new(Histogram::STORAGE_MICROS));
        Self {
            engine,
            head: watch::Sender::new(head),
            closed: RwLock::new(None),
            durability,
            sync_micros,
            storage_stats: RwLock::default(),
        }
    }

    /// Durable records after `after`, within `bound`. An engine that failed to write still has them.
    pub(super) fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        match &*self.engine.read() {
            // A record is there a moment before it is durable; nobody may see it earlier than the head.
            Some(engine) => read_within(engine, after, *self.head.borrow(), bound),
            None => Err(self.why_closed()),
        }
    }

    pub(super) fn head(&self) -> Result<Position, LogError> {
        match &*self.closed.read() {
            Some(error) => Err(error.clone()),
            None => Ok(*self.head.borrow()),
        }
    }

    pub(super) fn storage_stats(&self) -> StorageStats {
        StorageStats { sync_micros: Some(self.sync_micros.clone()), ..self.storage_stats.read().clone() }
    }

    pub(super) fn why_closed(&self) -> LogError {
        let being_opened = "the log is being opened again; try again in a moment";
        self.closed.read().clone().unwrap_or_else(|| LogError::new(Fault::Unreachable, being_opened))
    }

    /// Wakes callers that hang inside the engine.
    pub(super) fn unblock(&self) {
        // Recursively: the owner may be waiting for just those readers that wait to be woken.
        if let Some(engine) = self.engine.try_read_recursive()
            && let Some(engine) = &*engine
        {
            engine.unblock();
        }
    }
}
