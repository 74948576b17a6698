//! Reads what is left of a store that can no longer be opened, without changing the store.

use std::{path::Path, sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, Position, ReadBound, Record,
    StoredRecord, Version,
};
use async_trait::async_trait;
use tokio::task;

use super::{
    copy::Copy,
    engine::Engine,
    high_water::{HighWater, Mark},
    panics,
    reading::{Records, read_within},
};

/// What an engine finds in files that may be damaged.
pub struct Remains {
    /// The records that can be read.
    pub records: Box<dyn Records>,
    /// The last position that was found.
    pub last: Position,
    /// Every position that can be read, in order; `None` if the engine cannot look beyond the first damage.
    pub found: Option<Vec<Position>>,
    /// What is read, if that is a copy.
    pub copy: Option<Copy>,
}

/// The readable records of a store that nobody has open.
pub struct SalvagedLog {
    remains: Arc<Remains>,
    acknowledged: Option<Mark>,
}

impl SalvagedLog {
    /// Looks through the store at `path`. Blocks while it does so.
    pub(super) fn find<E: Engine>(path: &Path) -> Result<Self, LogError> {
        let layout = E::layout(path);
        layout.check_unused()?;
        let acknowledged = HighWater::peek(&layout.mark);
        Ok(Self {
            remains: Arc::new(panics::reading("salvaging the log", || E::salvage(&layout, acknowledged))?),
            acknowledged,
        })
    }

    /// How far the log is known to have reached: to its mark, and to the last record that was found.
    pub fn reach(&self) -> Position {
        self.acknowledged.map_or(Position::START, |mark| mark.position).max(self.remains.last)
    }

    /// Whether there is a mark that tells where the log ended. Without one, what is missing at the end is unknown.
    pub fn end_is_known(&self) -> bool {
        self.acknowledged.is_some()
    }

    /// The positions up to the [`reach`](Self::reach) that cannot be read, as ranges from first to last; `None` if the
    /// engine cannot look beyond the first of them.
    pub fn missing(&self) -> Option<Vec<(Position, Position)>> {
        let mut missing = Vec::new();
        let mut next = Position::START.next();
        for position in self.remains.found.as_ref()?.iter().copied().chain([self.reach().next()]) {
            if next < position {
                missing.push((next, Position(position.0 - 1)));
            }
            next = position.next();
        }
        Some(missing)
    }
}

#[async_trait]
impl EventLog for SalvagedLog {
    async fn append(&self, _: Version, _: &Record) -> Result<Position, AppendError> {
        let detail = "what is left of a damaged store is read-only; salvage it into a new one";
        Err(AppendError::NotStored(LogError::new(Fault::CannotOpen, detail)))
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let (remains, reach) = (self.remains.clone(), self.reach());
        let read = task::spawn_blocking(move || read_within(&*remains.records, after, reach, bound)).await;
        read.expect("a panic while reading becomes an error")
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.reach())
    }

    async fn wait_beyond(&self, _: Position, _: Duration) -> Result<(), LogError> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "salvage",
            level: DurabilityLevel::Volatile,
            promise: "nothing is written here: this is what is left of a damaged store".into(),
            facts: vec![],
        }
    }
}
