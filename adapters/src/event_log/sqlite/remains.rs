//! What is left of a log that cannot be opened any more, read from a copy of its files: SQLite may repair
//! while it reads, and what is damaged is to stay as it is.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, Position, ReadBound, Record,
    StoredRecord, Version,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task;

use super::{
    files::{beside, check_unused, mark_of},
    reader::Reader,
};
use crate::event_log::high_water::HighWater;

/// The readable records of a SQLite file that nobody has open.
#[derive(Debug, Clone)]
pub struct SqliteRemains(Arc<Found>);

#[derive(Debug)]
struct Found {
    reader: Mutex<Reader>,
    reach: Position,
    end_is_known: bool,
    /// Goes when nobody reads it any more.
    _copy: TempDir,
}

impl SqliteRemains {
    /// Looks at the log in the file `path`. Blocks while it copies it to the folder for temporary files.
    pub fn find(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let path = path.as_ref();
        check_unused(path)?;
        let copied = copy(path).map_err(|error| {
            let detail = format!(
                "the log {} cannot be copied to the folder for temporary files: {error}; check the path, and that \
                 there is room (TMPDIR names another folder)",
                path.display()
            );
            LogError::new(Fault::CannotOpen, detail)
        })?;
        let reader = Reader::connect(&copied.path().join("log"))?;
        let mark = HighWater::peek(&mark_of(path)).map(|mark| mark.position);
        // Where even that cannot be told, the mark has to do.
        let last = reader.last().unwrap_or(Position::START);
        let reach = mark.map_or(last, |mark| mark.max(last));
        let reader = Mutex::new(reader);
        Ok(Self(Arc::new(Found { reader, reach, end_is_known: mark.is_some(), _copy: copied })))
    }

    /// How far the log is known to have reached: to its mark, and to the last record that was found.
    pub fn reach(&self) -> Position {
        self.0.reach
    }

    /// Whether there is a mark that tells where the log ended. Without one, what is missing at the end is
    /// unknown.
    pub fn end_is_known(&self) -> bool {
        self.0.end_is_known
    }
}

#[async_trait]
impl EventLog for SqliteRemains {
    async fn append(&self, _: Version, _: &Record) -> Result<Position, AppendError> {
        let detail = "what is left of a damaged log is only read; salvage it into a new one";
        Err(AppendError::NotStored(LogError::new(Fault::CannotOpen, detail)))
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let found = self.0.clone();
        let read = task::spawn_blocking(move || found.read(after, bound)).await;
        read.expect("reading a database never panics")
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.reach())
    }

    async fn wait_beyond(&self, _: Position, _: Duration) -> Result<(), LogError> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "sqlite",
            level: DurabilityLevel::Volatile,
            promise: "nothing is written here: these are the remains of a damaged log".into(),
            facts: vec![],
        }
    }
}

impl Found {
    fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let reader = self.reader.lock();
        // One by one if need be, to come as close to the damage as possible.
        reader.read(after, self.reach, bound).or_else(|_| reader.read(after, self.reach, ReadBound::ONE))
    }
}

/// A copy of the database and of what waits to be moved into it.
fn copy(path: &Path) -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::copy(path, folder.path().join("log"))?;
    match fs::copy(beside(path, "-wal"), folder.path().join("log-wal")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(folder),
    }
}
