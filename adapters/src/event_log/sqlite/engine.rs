//! What is asked of SQLite: one table, one row per commit.
//!
//! A commit is synced before it is visible: SQLite syncs its write-ahead log first and tells readers then. So
//! what a reader sees cannot be taken back.

use std::{path::Path, time::Duration};

use application::ports::{CommitId, Durability, DurabilityLevel, Fault, LogError, Position, Record};
use rusqlite::{Connection, Error, OpenFlags, OptionalExtension as _, Row, config::DbConfig, params};
use uuid::Uuid;

use super::{files::Files, trouble::explain};
use crate::event_log::embedded::high_water::Mark;

/// What marks a database as ours: the letters "pets".
const APPLICATION_ID: i32 = 0x7065_7473;
/// The version of the table that this program knows.
const VERSION: i32 = 1;
/// How long to wait for somebody who looks at the database with another tool.
pub(super) const BUSY_PATIENCE: Duration = Duration::from_secs(2);
/// The write-ahead log is cut back to this size when it can be.
const WAL_BYTES_MAX: i64 = 64 * 1024 * 1024;

const CREATE: &str = "\
    BEGIN IMMEDIATE; \
    CREATE TABLE commits (position INTEGER PRIMARY KEY CHECK (position > 0), id BLOB NOT NULL, bytes BLOB NOT NULL) STRICT; \
    PRAGMA application_id = 0x70657473; \
    PRAGMA user_version = 1; \
    COMMIT";
const APPEND: &str = "\
    INSERT INTO commits (position, id, bytes) \
    SELECT ?1 + 1, ?2, ?3 WHERE ?1 = (SELECT coalesce(max(position), 0) FROM commits)";
const TAIL: &str = "SELECT position, id FROM commits ORDER BY position DESC LIMIT 1";
const COMMIT_AT: &str = "SELECT id FROM commits WHERE position = ?1";

const SYNCED: &str = "every acknowledged commit is on this machine's disk: it survives kill -9 and power cuts, as far \
                      as the disk keeps what it says it has synced";
const BUFFERED: &str = "NOT DURABLE: a power cut takes back the last commits that were acknowledged";

/// The connection that writes.
#[derive(Debug)]
pub(super) struct Engine(Connection);

/// What was found in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    Log,
}

impl Engine {
    /// Connects to the database and looks what it is, without changing anything: what waits in the write-ahead log
    /// stays there, even if this connection is closed again.
    pub(super) fn connect(files: &Files) -> Result<(Self, Content), LogError> {
        let path = files.database();
        let doing = format!("opening {}", path.display());
        let explained = |error: Error| explain(&doing, &error);
        // No URIs: a path is a path.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let engine = Self(Connection::open_with_flags(path, flags).map_err(explained)?);
        // An empty one that SQLite makes now goes again.
        engine.keep_waiting(files.waiting() > 0).map_err(explained)?;
        match look(&engine.0).map_err(explained)? {
            (0, 0, 0) => Ok((engine, Content::Nothing)),
            (APPLICATION_ID, VERSION, _) => Ok((engine, Content::Log)),
            (APPLICATION_ID, version, _) if version > VERSION => {
                let detail = format!(
                    "the log {} has version {version}, this program knows {VERSION}; run the petstore that made it \
                     or a later one",
                    path.display()
                );
                Err(LogError::new(Fault::NewerFormat, detail))
            }
            _ => {
                let detail = format!("{} is not a petstore log; choose another path", path.display());
                Err(LogError::new(Fault::CannotOpen, detail))
            }
        }
    }

    /// Sets up a connection so that commits are durable, and makes the table if there is nothing yet. A log that is
    /// there stays as it is: whoever reads it may still find damage.
    pub(super) fn prepare(&self, content: Content) -> Result<(), LogError> {
        let prepare = || {
            let mode: String =
                self.0.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
            if mode != "wal" {
                return Ok(Some(mode));
            }
            self.0.busy_timeout(BUSY_PATIENCE)?;
            self.0.pragma_update(None, "synchronous", "FULL")?;
            self.0.pragma_update(None, "wal_autocheckpoint", 0)?;
            self.0.pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)?;
            self.0.pragma_update(None, "cell_size_check", true)?;
            self.0.pragma_update(None, "trusted_schema", false)?;
            if content == Content::Nothing {
                self.0.execute_batch(CREATE)?;
            }
            self.keep_waiting(true)?;
            Ok(None)
        };
        let refused = prepare().map_err(|error: Error| explain("setting up the log", &error))?;
        if let Some(mode) = refused {
            let detail = format!(
                "the file system of the log has no write-ahead log to offer (journal_mode {mode}); choose a local disk"
            );
            return Err(LogError::new(Fault::CannotOpen, detail));
        }
        Ok(())
    }

    /// Writes something that changes nothing, and syncs it: proof that the disk takes writes.
    pub(super) fn prove_writable(&self) -> Result<(), LogError> {
        self.0
            .pragma_update(None, "user_version", VERSION)
            .map_err(|error| explain("writing to the log", &error))
    }

    /// Stores the record after `expected`, and returns when it is on disk; `false` if that is not the head.
    pub(super) fn append(&self, expected: Position, record: &Record) -> Result<bool, Error> {
        let Ok(expected) = i64::try_from(expected.0) else { return Ok(false) };
        let id = record.id.0.as_bytes();
        let rows = self.0.prepare_cached(APPEND)?.execute(params![expected, &id[..], &record.bytes[..]])?;
        Ok(rows == 1)
    }

    /// Moves what waits in the write-ahead log into the database, as far as readers allow; `false` if they do not.
    pub(super) fn checkpoint(&self, mode: &str) -> Result<bool, LogError> {
        let checkpoint = format!("PRAGMA wal_checkpoint({mode})");
        self.0
            .query_row(&checkpoint, [], |row| Ok(row.get::<_, i64>(0)? == 0))
            .map_err(|error| explain("moving commits into the database", &error))
    }

    /// Moves everything into the database and closes it, so that nobody needs the write-ahead log any more.
    pub(super) fn finish(self) -> Result<(), LogError> {
        if self.checkpoint("TRUNCATE")? {
            self.keep_waiting(false).map_err(|error| explain("closing the log", &error))?;
        }
        Ok(())
    }

    /// Whether closing leaves the write-ahead log alone. Otherwise SQLite moves it into the database and deletes it,
    /// and tells nobody if that fails.
    fn keep_waiting(&self, keep: bool) -> Result<(), Error> {
        self.0.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
    }

    /// The last commit.
    pub(super) fn tail(&self) -> Result<Mark, LogError> {
        let tail = self
            .0
            .query_row(TAIL, [], |row| Ok(Mark { position: position(row, 0)?, commit: commit_id(row, 1)? }));
        let tail = tail.optional().map_err(|error| explain("reading the end of the log", &error))?;
        Ok(tail.unwrap_or(Mark::START))
    }

    /// Which commit stands at `position`, if any.
    pub(super) fn commit_at(&self, position: Position) -> Result<Option<CommitId>, LogError> {
        let Ok(position) = i64::try_from(position.0) else { return Ok(None) };
        self.0
            .query_row(COMMIT_AT, [position], |row| commit_id(row, 0))
            .optional()
            .map_err(|error| explain("reading the log", &error))
    }

    /// What is really in force on this connection.
    pub(super) fn durability(&self, path: &Path) -> Result<Durability, LogError> {
        use DurabilityLevel::{Buffered, Synced};
        let look = || {
            let journal_mode: String = self.0.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            let synchronous: i64 = self.0.pragma_query_value(None, "synchronous", |row| row.get(0))?;
            Ok((journal_mode, synchronous))
        };
        let (journal_mode, synchronous) =
            look().map_err(|error: Error| explain("reading the settings of the log", &error))?;
        let (level, promise, synchronous) = match synchronous {
            2 => (Synced, SYNCED, "FULL"),
            3 => (Synced, SYNCED, "EXTRA"),
            1 => (Buffered, BUFFERED, "NORMAL"),
            _ => (Buffered, BUFFERED, "OFF"),
        };
        let facts = [
            ("file", path.display().to_string()),
            ("sqlite_version", rusqlite::version().to_owned()),
            ("journal_mode", journal_mode),
            ("synchronous", synchronous.to_owned()),
            ("high-water mark", "written with every commit, synced every second".to_owned()),
        ];
        Ok(Durability {
            engine: "sqlite",
            level,
            promise: promise.into(),
            facts: facts.map(|(setting, value)| (setting.to_owned(), value)).into(),
        })
    }
}

/// The application id, the version, and how much there is in the schema.
fn look(connection: &Connection) -> Result<(i32, i32, i64), Error> {
    Ok((
        connection.pragma_query_value(None, "application_id", |row| row.get(0))?,
        connection.pragma_query_value(None, "user_version", |row| row.get(0))?,
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?,
    ))
}

pub(super) fn position(row: &Row<'_>, column: usize) -> Result<Position, Error> {
    let stored: i64 = row.get(column)?;
    u64::try_from(stored).map(Position).map_err(|_| Error::IntegralValueOutOfRange(column, stored))
}

fn commit_id(row: &Row<'_>, column: usize) -> Result<CommitId, Error> {
    row.get(column).map(Uuid::from_bytes).map(CommitId)
}
