//! A log in one SQLite file, one row per commit, for operators who want to read their data with common tools. This file
//! holds only what is specific to SQLite; the rest is in [`embedded`](super::embedded).
//!
//! A commit is synced before it is visible: SQLite syncs its write-ahead log before it shows the commit to readers. So
//! a crash cannot remove a commit that was read.

mod connection;
#[cfg(test)]
mod tests;

use std::{
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use application::ports::{LogError, Position, Record, Version};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use super::embedded::{EmbeddedLog, Engine, Layout, check_nothing_is_lost, io_error};
use crate::private_files::{check, create_file, open};

use connection::{READ_ONLY, READ_UNCHANGING, VERSION, WRITE, connect, holds_log, log_error};

/// The size of the write-ahead log at which it is moved into the database. Smaller than the reserve on any disk, so
/// that there is always room for it.
const CHECKPOINT_BYTES: u64 = 1024 * 1024;
/// The space that a commit needs in the write-ahead log beyond its own size: the rest of its pages, and one or two
/// parent pages.
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

/// An open database: one connection that writes, and one that reads.
#[derive(Debug)]
pub struct Sqlite {
    /// Closed before the writer: SQLite closes the database with the last connection.
    reader: Mutex<Connection>,
    writer: Mutex<Connection>,
    /// The write-ahead log.
    wal: PathBuf,
    /// The number of bytes written to it since the last checkpoint.
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

    /// Excludes the index (-shm), which SQLite recreates. The files may be opened only while SQLite has the database
    /// closed: closing a handle would release SQLite's locks.
    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>> {
        // SQLite does not follow symbolic links here, but changes the owner of its files to that of the database, even
        // through hard links.
        check(&layout.with_suffix("-shm"))?;
        // The journal exists only while a database is being created.
        let files = ["", "-wal", "-journal"].map(|ending| layout.with_suffix(ending));
        files.iter().try_for_each(|file| check(file))?;
        Ok(files.into_iter().filter(|file| file.exists()).collect())
    }

    /// SQLite keeps both open until the log is closed.
    fn record_files(layout: &Layout) -> Vec<PathBuf> {
        vec![layout.path.clone(), layout.with_suffix("-wal")]
    }

    fn open(layout: &Layout, acknowledged: Version) -> Result<Self, LogError> {
        let path = &layout.path;
        if length(path) == 0 {
            // SQLite would create a new database, and delete the write-ahead log of a lost one.
            check_nothing_is_lost(acknowledged, Position::START, None)?;
            // Created here, not by SQLite, so that no other user can ever open it. SQLite gives its other files the
            // mode of the database.
            create_file(path).map_err(io_error("creating the log"))?;
        }
        let writer = connect(path, WRITE)?;
        if !holds_log(&writer, path)? {
            writer.execute_batch(CREATE).map_err(log_error("creating the log"))?;
        }
        let opened = Self::new(layout, writer, READ_ONLY)?;
        // SQLite opens the write-ahead log at the first read. From then on, reads work even if the files are deleted.
        holds_log(&opened.reader.lock(), path)?;
        Ok(opened)
    }

    /// Opens the database if the write-ahead log is empty: then SQLite needs neither locks nor an index. Reading the
    /// write-ahead log needs an index, which is a file.
    fn open_in_place(layout: &Layout) -> Result<Option<Self>, LogError> {
        let [wal, journal] = ["-wal", "-journal"].map(|ending| length(&layout.with_suffix(ending)));
        if length(&layout.path) > 0 && wal + journal == 0 {
            let writer = connect(&layout.path, READ_UNCHANGING)?;
            if holds_log(&writer, &layout.path)? {
                return Self::new(layout, writer, READ_UNCHANGING).map(Some);
            }
        }
        Ok(None)
    }

    fn prepare(&self, layout: &Layout) -> Result<(), LogError> {
        let writer = self.writer.lock();
        connection::set_up(&writer)?;
        if layout.has_failed_sync_marker() {
            // A write that changes nothing, to prove that the disk accepts and syncs writes.
            writer.pragma_update(None, "user_version", VERSION).map_err(log_error("writing to the log"))?;
        }
        Ok(())
    }

    fn append(&self, first: Position, records: &[Record]) -> Result<(), LogError> {
        let mut writer = self.writer.lock();
        let mut store = || {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut append = transaction.prepare_cached(APPEND)?;
            for (record, position) in records.iter().zip(first.0..) {
                append.execute(params![position, &record.id.0.as_bytes()[..], &record.bytes[..]])?;
            }
            drop(append);
            transaction.commit()
        };
        store().map_err(log_error("writing to the log"))?;
        let written = records.iter().map(|record| record.bytes.len() as u64 + COMMIT_OVERHEAD).sum();
        self.written.fetch_add(written, Relaxed);
        Ok(())
    }

    fn maintain(&self) -> Result<(), LogError> {
        if self.written.load(Relaxed) >= CHECKPOINT_BYTES {
            self.written.store(0, Relaxed);
            connection::checkpoint(&self.writer.lock(), "PASSIVE")?;
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<(), LogError> {
        // A reader would block the checkpoint.
        let _reader = self.reader.lock();
        connection::checkpoint(&self.writer.lock(), "TRUNCATE")
    }

    fn durability_settings(&self) -> Vec<(&'static str, String)> {
        let facts =
            [("sqlite_version", rusqlite::version()), ("journal_mode", "wal"), ("synchronous", "FULL")];
        facts.map(|(setting, value)| (setting, value.to_owned())).into()
    }

    fn open_damaged(copy: &Layout) -> Result<Self, LogError> {
        // A damaged header may name a size that no file can have; then SQLite reports the damage.
        drop(pad(&copy.path));
        Self::new(copy, connect(&copy.path, READ_ONLY)?, READ_ONLY)
    }
}

impl Sqlite {
    fn new(layout: &Layout, writer: Connection, reading: OpenFlags) -> Result<Self, LogError> {
        let (reader, wal) = (connect(&layout.path, reading)?, layout.with_suffix("-wal"));
        Ok(Self { writer: writer.into(), reader: reader.into(), written: length(&wal).into(), wal })
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // Fails only if SQLite is misused.
        drop(connection::keep_wal(self.writer.get_mut(), &self.wal));
    }
}

/// Extends a truncated database with zeros to the size in its header. SQLite reads nothing from a file that is shorter.
fn pad(database: &Path) -> io::Result<()> {
    let file = open(database)?;
    let mut header = [0; 100];
    if file.read_exact_at(&mut header, 0).is_err() {
        return Ok(());
    }
    let number =
        |at: usize, len: usize| header[at..at + len].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    // The largest page size, 65536, does not fit into its field.
    let page = if number(16, 2) == 1 { 65_536 } else { number(16, 2) };
    let size = page * number(28, 4);
    if file.metadata()?.len() < size { file.set_len(size) } else { Ok(()) }
}

/// The length of a file, or 0 if it is missing.
fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |about| about.len())
}
