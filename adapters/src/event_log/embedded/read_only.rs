//! A read-only log. It changes no files, so it works on a read-only disk, and root leaves no files in the store of
//! another user.

use std::{fmt, fs::File, path::Path, sync::Arc, time::Duration};

use application::ports::{Durability, LogError, LogSource, Position, ReadBound, StoredRecord, Version};
use async_trait::async_trait;
use tokio::task;

use super::{
    copy::StoreCopy,
    engine::Engine,
    high_water_mark::{self, HighWaterMark},
    opening::{check, discard, files_of},
    panics,
    reading::{Records, read_within},
    shared,
};

/// A store opened read-only. While it is held, no process can open the store for writing,
/// provided that the lock could be taken.
pub struct ReadOnlyLog {
    source: Arc<RecordSource>,
    head: Position,
    durability: Durability,
}

/// The source of the records. Fields are dropped in order: the records before the copy.
pub(super) struct RecordSource {
    pub(super) records: Box<dyn Records>,
    pub(super) _copy: Option<StoreCopy>,
    /// `None` if there is no readable lock file.
    pub(super) _lock: Option<File>,
}

impl ReadOnlyLog {
    pub(super) fn new(source: RecordSource, head: Position, durability: Durability) -> Self {
        Self { source: source.into(), head, durability }
    }

    /// Opens the store at `path`, and checks that it is complete. Blocks.
    pub(super) fn open<E: Engine>(path: &Path) -> Result<Self, LogError> {
        let layout = E::layout(path);
        layout.check_kind()?;
        let lock = layout.lock_shared()?;
        let files = files_of::<E>(&layout)?;
        let mark = HighWaterMark::read(&layout.mark)?;
        if mark.is_none() && files.is_empty() {
            return Err(layout.missing());
        }
        let doing = format!("opening the store {}", layout.path.display());
        let open = || E::open_to_read(&layout, mark.unwrap_or(Version::START));
        let (engine, copy) = panics::reading(&doing, open)?;
        let last =
            mark.ok_or_else(|| high_water_mark::missing(&layout.mark)).and_then(|mark| check(&engine, mark));
        match last {
            Ok(last) => {
                let durability = shared::durability_of(&engine, &layout);
                let source = RecordSource { records: Box::new(engine), _copy: copy, _lock: lock };
                Ok(Self::new(source, last.position, durability))
            }
            Err(error) => {
                discard(engine);
                Err(error)
            }
        }
    }
}

impl fmt::Debug for ReadOnlyLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReadOnlyLog").field("head", &self.head).finish_non_exhaustive()
    }
}

#[async_trait]
impl LogSource for ReadOnlyLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let (source, head) = (self.source.clone(), self.head);
        let read = task::spawn_blocking(move || read_within(&*source.records, after, head, bound)).await;
        read.expect("a panic while reading becomes an error")
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.head)
    }

    async fn wait_for(&self, _: Position, _: Duration) -> Result<(), LogError> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.durability.clone()
    }
}
