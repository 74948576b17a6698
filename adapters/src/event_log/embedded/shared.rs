//! The state that the log thread shares with other threads: the engine for reads, the durable head, and the reason why
//! writes are rejected.

use std::sync::Arc;

use application::{
    Histogram,
    ports::{Durability, DurabilityLevel, Fault, LogError, Position, ReadBound, StorageStats, StoredRecord},
};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::{engine::Engine, layout::Layout, reading::read_within};

const PROMISE: &str = "every acknowledged commit is on the local disk: it survives kill -9 and power cuts, \
                       if the disk honours fsync";

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

pub(super) struct SharedState<E> {
    /// `None` while the log is being reopened.
    pub(super) engine: RwLock<Option<E>>,
    /// The last position that is durable.
    pub(super) head: watch::Sender<Position>,
    /// The reason why writes are rejected, if they are.
    pub(super) closed: RwLock<Option<LogError>>,
    pub(super) durability: Durability,
    pub(super) sync_micros: Arc<Histogram>,
    pub(super) storage_stats: RwLock<StorageStats>,
}

impl<E: Engine> SharedState<E> {
    pub(super) fn new(engine: E, layout: &Layout, head: Position) -> Self {
        Self {
            durability: durability_of(&engine, layout),
            engine: RwLock::new(Some(engine)),
            head: watch::Sender::new(head),
            closed: RwLock::new(None),
            sync_micros: Arc::new(Histogram::new(Histogram::STORAGE_MICROS)),
            storage_stats: RwLock::default(),
        }
    }

    /// Returns durable records after `after`, within `bound`. Works even after a failed write.
    pub(super) fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        match &*self.engine.read() {
            // The engine shows a record before it is durable; readers must not see it until then.
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

    pub(super) fn why_closed(&self) -> LogError {
        let being_opened = "the log is being reopened; try again in a moment";
        self.closed.read().clone().unwrap_or_else(|| Fault::Unreachable.error(being_opened))
    }

    /// Wakes threads that hang inside the engine.
    pub(super) fn unblock(&self) {
        // Recursive: otherwise this would wait behind the log thread, which may be waiting for the readers that hang.
        if let Some(engine) = self.engine.try_read_recursive()
            && let Some(engine) = &*engine
        {
            engine.unblock();
        }
    }
}
