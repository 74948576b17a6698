//! A read-only log, of an intact store or of the intact records of a damaged one. It changes no files, so it works on a
//! read-only disk.

use std::{fs::File, path::Path, sync::Arc};

use application::{
    ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord, Version},
    transfer::SalvagedLog,
};
use async_trait::async_trait;
use tokio::task;

use super::{
    copy::StoreCopy,
    durability_of,
    engine::Engine,
    high_water_mark::{self, HighWaterMark},
    opening::{check, discard, files_of},
    panics,
    reading::{Records, read_within},
};
use crate::event_log::volatile;

/// A store opened read-only. While it is held, no process can open the store for writing,
/// provided that the lock could be taken.
pub struct ReadOnlyLog {
    /// The records, and the lock, if there is a readable lock file.
    source: Arc<(FoundRecords, Option<File>)>,
    durability: Durability,
}

/// The records of a store, which may be damaged. Fields are dropped in order: the records before the copy.
pub struct FoundRecords {
    /// The records that can be read.
    pub records: Box<dyn Records>,
    /// The last position that the store is known to have had.
    pub last: Position,
    /// The copy that is read, if the engine has made one.
    pub copy: Option<StoreCopy>,
}

impl ReadOnlyLog {
    /// Opens the store at `path`, and checks that it is complete. Blocks.
    pub fn open<E: Engine>(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let layout = E::layout(path.as_ref());
        layout.check_kind()?;
        let lock = layout.lock_shared()?;
        let files = files_of::<E>(&layout)?;
        let mark = HighWaterMark::read(&layout.mark)?;
        if mark.is_none() && files.is_empty() {
            let detail = format!("no store at {}; check the path", layout.path.display());
            return Err(Fault::CannotOpen.error(detail));
        }
        let doing = format!("opening the store {}", layout.path.display());
        let open = || E::open_to_read(&layout, mark.unwrap_or(Version::START));
        let (engine, copy) = panics::reading(&doing, open)?;
        let last = mark
            .ok_or_else(|| high_water_mark::end_unknown(&layout.mark, "is missing"))
            .and_then(|mark| check(&engine, mark));
        match last {
            Ok(last) => {
                let durability = durability_of(&engine, &layout);
                let found = FoundRecords { records: Box::new(engine), last: last.position, copy };
                Ok(Self { source: Arc::new((found, lock)), durability })
            }
            Err(error) => {
                discard(engine);
                Err(error)
            }
        }
    }

    /// Finds the readable records of the store at `path`, which may be damaged. Blocks.
    pub fn salvage<E: Engine>(path: impl AsRef<Path>) -> Result<SalvagedLog, LogError> {
        let layout = E::layout(path.as_ref());
        let lock = layout.lock_shared()?;
        let acknowledged = HighWaterMark::read(&layout.mark).ok().flatten();
        let mut found = panics::reading("salvaging the log", || E::salvage(&layout, acknowledged))?;
        let last_known = acknowledged.map_or(found.last, |mark| mark.position.max(found.last));
        found.last = last_known;
        let durability = volatile("salvage", "read-only: the intact records of a damaged store");
        let log = Self { source: Arc::new((found, lock)), durability };
        // Without a mark, missing commits at the end cannot be detected.
        Ok(SalvagedLog { log: Arc::new(log), last_known, end_is_known: acknowledged.is_some() })
    }
}

#[async_trait]
impl LogSource for ReadOnlyLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let source = self.source.clone();
        let read = task::spawn_blocking(move || {
            let (found, _) = &*source;
            read_within(&*found.records, after, found.last, bound)
        });
        read.await.expect("a panic while reading becomes an error")
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.source.0.last)
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        Ok(self.source.0.records.skip(damaged))
    }

    fn durability(&self) -> Durability {
        self.durability.clone()
    }
}
