//! Reads the intact records of a store that can no longer be opened, without changing the store.

use std::{path::Path, sync::Arc};

use application::ports::{Durability, DurabilityLevel, LogError, Position};

use super::{
    copy::StoreCopy,
    engine::Engine,
    high_water_mark::HighWaterMark,
    panics,
    read_only::{ReadOnlyLog, RecordSource},
    reading::Records,
};
use crate::event_log::SalvagedLog;

/// The records that an engine finds in files that may be damaged.
pub struct FoundRecords {
    /// The records that can be read.
    pub records: Box<dyn Records>,
    /// The last position that was found.
    pub last: Position,
    /// The copy that is read, if the engine has made one.
    pub copy: Option<StoreCopy>,
}

/// Finds the readable records of the store at `path`. Blocks.
pub(super) fn find<E: Engine>(path: &Path) -> Result<SalvagedLog, LogError> {
    let layout = E::layout(path);
    let lock = layout.lock_shared()?;
    let acknowledged = HighWaterMark::read(&layout.mark).ok().flatten();
    let FoundRecords { records, last, copy } =
        panics::reading("salvaging the log", || E::salvage(&layout, acknowledged))?;
    let last_known = acknowledged.map_or(Position::START, |mark| mark.position).max(last);
    let durability = Durability {
        engine: "salvage",
        level: DurabilityLevel::Volatile,
        promise: "read-only: the intact records of a damaged store".into(),
        settings: vec![],
    };
    let log = ReadOnlyLog::new(RecordSource { records, _copy: copy, _lock: lock }, last_known, durability);
    // Without a mark, missing commits at the end cannot be detected.
    Ok(SalvagedLog { log: Arc::new(log), last_known, end_is_known: acknowledged.is_some() })
}
