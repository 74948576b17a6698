//! Reads what is left of a store that can no longer be opened, without changing the store.

use std::path::Path;

use application::ports::{Durability, DurabilityLevel, LogError, Position};

use super::{
    copy::Copy,
    engine::Engine,
    high_water_mark::HighWaterMark,
    panics,
    read_only::{ReadOnlyLog, Source},
    reading::Records,
};

/// What an engine finds in files that may be damaged.
pub struct FoundRecords {
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
    /// The records. Its head is how far the log is known to have reached: to its mark, and to the last record that was
    /// found.
    pub log: ReadOnlyLog,
    /// How far the log is known to have reached.
    pub reach: Position,
    /// Whether there is a mark that tells where the log ended. Without one, what is missing at the end is unknown.
    pub end_is_known: bool,
    found: Option<Vec<Position>>,
}

impl SalvagedLog {
    /// Looks through the store at `path`. Blocks while it does so.
    pub(super) fn find<E: Engine>(path: &Path) -> Result<Self, LogError> {
        let layout = E::layout(path);
        let lock = layout.share()?;
        let acknowledged = HighWaterMark::read(&layout.mark).ok().flatten();
        let FoundRecords { records, last, found, copy } =
            panics::reading("salvaging the log", || E::salvage(&layout, acknowledged))?;
        let reach = acknowledged.map_or(Position::START, |mark| mark.position).max(last);
        let durability = Durability {
            engine: "salvage",
            level: DurabilityLevel::Volatile,
            promise: "nothing is written here: this is what is left of a damaged store".into(),
            facts: vec![],
        };
        let log = ReadOnlyLog::new(Source { records, _copy: copy, _lock: lock }, reach, durability);
        Ok(Self { log, reach, end_is_known: acknowledged.is_some(), found })
    }

    /// The positions up to the [`reach`](Self::reach) that cannot be read, as ranges from first to last; `None` if the
    /// engine cannot look beyond the first of them.
    pub fn missing(&self) -> Option<Vec<(Position, Position)>> {
        let mut missing = Vec::new();
        let mut next = Position::START.next();
        for position in self.found.as_ref()?.iter().copied().chain([self.reach.next()]) {
            if next < position {
                missing.push((next, Position(position.0 - 1)));
            }
            next = position.next();
        }
        Some(missing)
    }
}
