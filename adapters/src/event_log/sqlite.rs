//! A log in one SQLite file, one row per commit, for operators who want to read their data with common tools.
//! This file holds what is specific to SQLite; everything else is the mechanism in
//! [`embedded`](super::embedded).
//!
//! A commit is synced before it is visible: SQLite syncs its write-ahead log first and only then shows the
//! commit to readers. So a crash cannot remove what a reader has seen.

mod connection;
mod error_mapping;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use application::ports::{CommitId, LogError, Position, Record, Version};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, params};

use super::embedded::{
    CloseMode, EmbeddedLog, Engine, FoundRecords, Layout, StoreCopy, check_nothing_is_lost, io_error,
    open_copy,
};
use crate::private_files::{check_file, create_file};

use connection::{READ_ONLY, READ_UNCHANGING, VERSION, WRITE, connect, holds_log};
use error_mapping::log_error;

/// After so many bytes the write-ahead log is moved into the database. Less than what stays free on any disk, so that
/// there is always room for it.
const CHECKPOINT_BYTES: u64 = 1024 * 1024;
/// What a commit takes in the write-ahead log beyond its own size: the rest of its pages, and one or two above.
const COMMIT_OVERHEAD: u64 = 8 * 1024;

const CREATE: &str = "\
    PRAGMA journal_mode = WAL; \
    BEGIN IMMEDIATE; \
    CREATE TABLE commits (position INTEGER PRIMARY KEY CHECK (position > 0), id BLOB NOT NULL, bytes BLOB NOT NULL) STRICT; \
    PRAGMA application_id = 0x70657473; \
    PRAGMA user_version = 1; \
    COMMIT";
const APPEND: &str = "INSERT INTO commits (position, id, bytes) VALUES (?1, ?2, ?3)";

/// A log in a SQLite file.
pub type SqliteLog = EmbeddedLog<Sqlite>;

/// SQLite, open: one connection that writes, one that reads.
#[derive(Debug)]
pub struct Sqlite {
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
    /// The write-ahead log.
    wal: PathBuf,
    /// How much was written to it since the last checkpoint.
    written: AtomicU64,
}

impl Engine for Sqlite {
    const NAME: &'static str = "sqlite";

    fn layout(path: &Path) -> Layout {
        Layout::next_to_file(path)
    }

    fn exists(layout: &Layout) -> Result<bool, LogError> {
        if length(&layout.path) == 0 {
            return Ok(length(&layout.with_suffix("-wal")) > 0);
        }
        holds_log(&connect(&layout.path, WRITE)?, &layout.path)
    }

    /// Without the index, which SQLite creates again. They may be opened only while SQLite has the database closed:
    /// closing them would give up the locks that SQLite has on it.
    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>> {
        // SQLite follows no symbolic links here, but gives its files to the owner of the database, whatever they are.
        check_file(&layout.with_suffix("-shm"))?;
        // The journal is there only while a database is being created.
        let files = ["", "-wal", "-journal"].map(|ending| layout.with_suffix(ending));
        files.iter().try_for_each(|file| check_file(file))?;
        Ok(files.into_iter().filter(|file| file.exists()).collect())
    }

    /// SQLite keeps both open until the log is closed.
    fn record_files(layout: &Layout) -> Vec<PathBuf> {
        vec![layout.path.clone(), layout.with_suffix("-wal")]
    }

    fn open(layout: &Layout, acknowledged: Version) -> Result<Self, LogError> {
        let path = &layout.path;
        if length(path) == 0 {
            // SQLite would begin anew, and delete the write-ahead log of a lost database.
            check_nothing_is_lost(acknowledged, Position::START, None)?;
            // Created here rather than by SQLite, so that no other user can open it even for a moment. SQLite gives its
            // own files the mode of the database.
            create_file(path).map_err(io_error("creating the log"))?;
        }
        let writer = connect(path, WRITE)?;
        if !holds_log(&writer, path)? {
            writer.execute_batch(CREATE).map_err(log_error("creating the log"))?;
        }
        Self::new(layout, writer, READ_ONLY)
    }

    /// In its place if everything is in the database: then SQLite needs neither locks nor an index. What is still in the
    /// write-ahead log can be read only with an index, which a copy gets.
    fn open_to_read(layout: &Layout, acknowledged: Version) -> Result<(Self, Option<StoreCopy>), LogError> {
        let [wal, journal] = ["-wal", "-journal"].map(|ending| length(&layout.with_suffix(ending)));
        if length(&layout.path) > 0 && wal + journal == 0 {
            let writer = connect(&layout.path, READ_UNCHANGING)?;
            if holds_log(&writer, &layout.path)? {
                return Ok((Self::new(layout, writer, READ_UNCHANGING)?, None));
            }
        }
        open_copy(layout, acknowledged)
    }

    fn prepare(&self, layout: &Layout) -> Result<(), LogError> {
        let writer = self.writer.lock();
        connection::set_up(&writer)?;
        if layout.has_failed_sync_marker() {
            // Writes something that changes nothing, and syncs it: proof that the disk takes writes.
            writer.pragma_update(None, "user_version", VERSION).map_err(log_error("writing to the log"))?;
        }
        Ok(())
    }

    fn last(&self) -> Result<Version, LogError> {
        Ok(connection::commit(&self.writer.lock(), connection::LAST_COMMIT, [])?.unwrap_or(Version::START))
    }

    fn commit_at(&self, position: Position) -> Result<Option<CommitId>, LogError> {
        let found = connection::commit(&self.writer.lock(), connection::COMMIT_AT, [position.0])?;
        Ok(found.and_then(|version| version.commit))
    }

    fn append(&self, position: Position, record: &Record) -> Result<(), LogError> {
        let values = params![position.0, &record.id.0.as_bytes()[..], &record.bytes[..]];
        let writer = self.writer.lock();
        let stored = writer.prepare_cached(APPEND).and_then(|mut append| append.execute(values));
        stored.map_err(log_error("writing to the log"))?;
        self.written.fetch_add(record.bytes.len() as u64 + COMMIT_OVERHEAD, Relaxed);
        Ok(())
    }

    fn maintain(&self) -> Result<(), LogError> {
        if self.written.load(Relaxed) >= CHECKPOINT_BYTES {
            self.written.store(0, Relaxed);
            connection::checkpoint(&self.writer.lock(), "PASSIVE")?;
        }
        Ok(())
    }

    fn durability_settings(&self) -> Vec<(&'static str, String)> {
        let facts =
            [("sqlite_version", rusqlite::version()), ("journal_mode", "wal"), ("synchronous", "FULL")];
        facts.map(|(setting, value)| (setting, value.to_owned())).into()
    }

    fn close(self, mode: CloseMode) -> Result<(), LogError> {
        // The reader goes first: it must not stand in the way of what is moved into the database.
        drop(self.reader);
        let writer = self.writer.into_inner();
        let is_empty = match mode {
            CloseMode::Checkpoint => connection::checkpoint(&writer, "TRUNCATE")?,
            CloseMode::LeaveFiles => length(&self.wal) == 0,
        };
        connection::on_close(&writer, if is_empty { CloseMode::Checkpoint } else { CloseMode::LeaveFiles })
    }

    /// Reads a copy: SQLite may repair while it reads, and what is damaged is to stay as it is.
    fn salvage(layout: &Layout, _: Option<Version>) -> Result<FoundRecords, LogError> {
        let copy = StoreCopy::temporary::<Self>(layout)?;
        let salvaged = Self::new(&copy.layout, connect(&copy.layout.path, READ_ONLY)?, READ_ONLY)?;
        // Where even the last position cannot be told, the mark has to do.
        let last = salvaged.last().map_or(Position::START, |last| last.position);
        Ok(FoundRecords { records: Box::new(salvaged), last, copy: Some(copy) })
    }
}

impl Sqlite {
    fn new(layout: &Layout, writer: Connection, reading: OpenFlags) -> Result<Self, LogError> {
        let (reader, wal) = (connect(&layout.path, reading)?, layout.with_suffix("-wal"));
        Ok(Self { writer: writer.into(), reader: reader.into(), written: length(&wal).into(), wal })
    }
}

/// How long a file is; 0 if it is missing.
fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |about| about.len())
}
