//! A read-only log, of an intact store or of the intact records of a damaged one. It changes no files, so it works on a
//! read-only disk.

use std::{fs::File, io, ops::ControlFlow, path::Path, sync::Arc};

use application::{
    ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord, Version},
    transfer::SalvagedLog,
};
use async_trait::async_trait;
use tokio::task;

use super::{
    copy::{StoreCopy, copy_around_errors},
    durability_of,
    engine::{Engine, Records, check, discard, read_within},
    high_water_mark::{self, HighWaterMark},
    opening::files_of,
    panics,
};
use crate::event_log::volatile;

/// A store opened read-only. While it is held, no process can open the store for writing,
/// provided that the lock could be taken.
pub struct ReadOnlyLog {
    source: Arc<OpenStore>,
    /// The last position that the store is known to have had.
    last: Position,
    durability: Durability,
}

/// Fields are dropped in this order.
struct OpenStore {
    records: Box<dyn Records>,
    /// The copy that is read, if there is one.
    _copy: Option<StoreCopy>,
    /// The lock, if there is a readable lock file.
    _lock: Option<File>,
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
        let (engine, copy) = panics::reading(&doing, || {
            if let Some(engine) = E::open_in_place(&layout)? {
                return Ok((engine, None));
            }
            let copy = StoreCopy::temporary::<E>(&layout, io::copy)?;
            Ok((E::open(&copy.layout, mark.unwrap_or(Version::START))?, Some(copy)))
        })?;
        let last = mark
            .ok_or_else(|| high_water_mark::end_unknown(&layout.mark, "is missing"))
            .and_then(|mark| check(&engine, mark));
        let last = match last {
            Ok(last) => last.position,
            Err(error) => {
                discard(engine);
                return Err(error);
            }
        };
        let durability = durability_of(&engine, &layout);
        let source = OpenStore { records: Box::new(engine), _copy: copy, _lock: lock };
        Ok(Self { source: Arc::new(source), last, durability })
    }

    /// Finds the readable records of the store at `path`, which may be damaged. Blocks.
    pub fn salvage<E: Engine>(path: impl AsRef<Path>) -> Result<SalvagedLog, LogError> {
        let layout = E::layout(path.as_ref());
        let lock = layout.lock_shared()?;
        if let Ok(false) = layout.path.try_exists() {
            let detail =
                format!("there is no file {}; put it back, or check the path", layout.path.display());
            return Err(Fault::CannotOpen.error(detail));
        }
        let mark = HighWaterMark::read(&layout.mark).ok().flatten();
        let (records, last, copy) = panics::reading("salvaging the log", || {
            let (records, copy) = if let Some(records) = E::salvage(&layout, mark)? {
                (records, None)
            } else {
                let copy = StoreCopy::temporary::<E>(&layout, copy_around_errors)?;
                (Box::new(E::open_damaged(&copy.layout)?) as Box<dyn Records>, Some(copy))
            };
            // If the last position cannot be read, the records before the damage count.
            let last = records.last().map_or_else(|_| last_before_damage(&*records), |last| last.position);
            Ok((records, last, copy))
        })?;
        let last = mark.map_or(last, |mark| mark.position.max(last));
        let durability = volatile("salvage", "read-only: the intact records of a damaged store");
        let source = OpenStore { records, _copy: copy, _lock: lock };
        let log = Arc::new(Self { source: Arc::new(source), last, durability });
        // Without a mark, missing commits at the end cannot be detected.
        Ok(SalvagedLog { log, last_known: last, end_is_known: mark.is_some() })
    }
}

fn last_before_damage(records: &dyn Records) -> Position {
    let mut last = Position::START;
    // The error is the damage.
    drop(records.visit(last, Position::MAX, &mut |record| {
        last = record.position;
        ControlFlow::Continue(())
    }));
    last
}

#[async_trait]
impl LogSource for ReadOnlyLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let (source, last) = (self.source.clone(), self.last);
        let read = task::spawn_blocking(move || read_within(&*source.records, after, last, bound));
        read.await.expect("a panic while reading becomes an error")
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.last)
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        Ok(self.source.records.skip(damaged))
    }

    fn durability(&self) -> Durability {
        self.durability.clone()
    }
}
