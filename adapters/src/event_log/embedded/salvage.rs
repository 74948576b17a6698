//! Reads what is left of a store that can no longer be opened, without changing the store.

use std::{path::Path, sync::Arc};

use application::ports::{Durability, DurabilityLevel, LogError, Position};

use super::{
    copy::Copy,
    engine::Engine,
    high_water_mark::HighWaterMark,
    panics,
    read_only::{ReadOnlyLog, Source},
    reading::Records,
};
use crate::event_log::SalvagedLog;

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

/// Looks through the store at `path`. Blocks while it does so.
pub(super) fn find<E: Engine>(path: &Path) -> Result<SalvagedLog, LogError> {
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
    let missing = found.map(|found| gaps(&found, reach));
    // Without a mark, it is unknown what is missing at the end.
    Ok(SalvagedLog { log: Arc::new(log), reach, missing, end_is_known: acknowledged.is_some() })
}

/// The positions up to `reach` that are not among these.
fn gaps(found: &[Position], reach: Position) -> Vec<(Position, Position)> {
    let mut gaps = Vec::new();
    let mut next = Position::START.next();
    for position in found.iter().copied().chain([reach.next()]) {
        if next < position {
            gaps.push((next, Position(position.0 - 1)));
        }
        next = position.next();
    }
    gaps
}
