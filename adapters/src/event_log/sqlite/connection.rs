//! The SQL statements, the errors, and two connections: one writes, and the other reads at the same time.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{self, Path},
    time::Duration,
};

use application::ports::{CommitId, Fault, LogError, Position, StoredRecord, Version};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, OptionalExtension as _, config::DbConfig};
use uuid::Uuid;

use super::{Sqlite, length};
use crate::{
    event_log::embedded::{Records, Visit},
    private_files::with_suffix,
};

/// Marks a database as a petstore log: the letters "pets".
const APPLICATION_ID: i32 = 0x7065_7473;
pub(super) const VERSION: i32 = 1;
/// How long to wait for another process that uses the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

const INSPECT_SQL: &str = "\
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) \
    FROM pragma_application_id, pragma_user_version";
/// Automatic checkpoints are off, because `maintain` runs them. A checkpoint truncates the write-ahead log to 64 MiB.
const SETUP_PRAGMAS: &str = "\
    PRAGMA journal_mode = WAL; \
    PRAGMA synchronous = FULL; \
    PRAGMA wal_autocheckpoint = 0; \
    PRAGMA journal_size_limit = 67108864";
const CURRENT_PRAGMAS: &str = "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous";
const SYNCHRONOUS_FULL: i32 = 2;
/// Make SQLite report damage instead of skipping it.
const HARDENING_PRAGMAS: &str = "PRAGMA cell_size_check = true; PRAGMA trusted_schema = false";

const LAST: &str = "SELECT position, id FROM commits ORDER BY position DESC LIMIT 1";
const READ: &str =
    "SELECT position, bytes, id FROM commits WHERE position > ?1 AND position <= ?2 ORDER BY position";

/// Characters that are not escaped in the path of a URI.
const IN_URI: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'_').remove(b'-');

/// Access modes: writing, reading while another connection may write, and reading a file that does not change. In the
/// last mode SQLite creates no files and takes no locks.
pub(super) const WRITE: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE;
pub(super) const READ_ONLY: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY;
pub(super) const READ_UNCHANGING: OpenFlags = READ_ONLY.union(OpenFlags::SQLITE_OPEN_URI);

/// Connects to the database without changing it: the write-ahead log stays as it is, even when the connection is
/// closed.
pub(super) fn connect(path: &Path, access: OpenFlags) -> Result<Connection, LogError> {
    let name = if access == READ_UNCHANGING {
        // Only a URI can request the immutable mode.
        let absolute = path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        format!("file://{}?immutable=1", percent_encode(absolute.as_os_str().as_bytes(), IN_URI)).into()
    } else {
        path.to_path_buf()
    };
    let connect = || {
        let connection = Connection::open_with_flags(name, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.execute_batch(HARDENING_PRAGMAS)?;
        Ok(connection)
    };
    let connection = connect().map_err(log_error(&format!("opening {}", path.display())))?;
    keep_wal(&connection, &with_suffix(path, "-wal"))?;
    Ok(connection)
}

/// Returns whether the database holds a log, or `false` if it is empty. Rejects any other content.
pub(super) fn holds_log(connection: &Connection, path: &Path) -> Result<bool, LogError> {
    let found = connection.query_row(INSPECT_SQL, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (fault, what) = match found.map_err(log_error(&format!("opening {}", path.display())))? {
        (0, 0, 0) => return Ok(false),
        (APPLICATION_ID, VERSION, _) => return Ok(true),
        (APPLICATION_ID, version, _) if version > VERSION => (
            Fault::UnsupportedFormat,
            format!(
                "has schema version {version}, and this petstore supports {VERSION}; run a newer petstore"
            ),
        ),
        _ => (Fault::CannotOpen, "is not a petstore log; choose another path".to_owned()),
    };
    Err(fault.error(format!("the file {} {what}", path.display())))
}

/// Sets the pragmas that make commits durable, and verifies them.
pub(super) fn set_up(connection: &Connection) -> Result<(), LogError> {
    let set_up = || {
        connection.execute_batch(SETUP_PRAGMAS)?;
        connection.query_row(CURRENT_PRAGMAS, [], |row| Ok((row.get(0)?, row.get(1)?)))
    };
    let (mode, synchronous): (String, i32) = set_up().map_err(log_error("setting up the log"))?;
    if mode == "wal" && synchronous == SYNCHRONOUS_FULL {
        return Ok(());
    }
    Err(Fault::CannotOpen.error(format!(
        "SQLite cannot make commits durable here (journal_mode {mode}, synchronous {synchronous}); choose a local disk"
    )))
}

/// Moves the write-ahead log into the database. Leaves the rest if readers prevent a part of it.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<(), LogError> {
    let moved = connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()));
    moved.map_err(log_error("moving commits into the database"))
}

/// Makes closing the connection leave the write-ahead log as it is, unless it is empty: then SQLite may delete it.
/// Otherwise SQLite moves it into the database and deletes it, and reports no error if that fails.
pub(super) fn keep_wal(connection: &Connection, wal: &Path) -> Result<(), LogError> {
    let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, length(wal) > 0);
    set.map(drop).map_err(log_error("setting up the log"))
}

impl Records for Sqlite {
    fn last(&self) -> Result<Version, LogError> {
        let last = self.writer.lock().query_row(LAST, [], |row| {
            let (position, commit) = (Position(row.get(0)?), CommitId(Uuid::from_bytes(row.get(1)?)));
            Ok(Version::at(position, commit))
        });
        Ok(last.optional().map_err(log_error("reading the log"))?.unwrap_or(Version::START))
    }

    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let connection = self.reader.lock();
        let mut read = || {
            let mut statement = connection.prepare_cached(READ)?;
            let mut rows = statement.query([after.0, last.0])?;
            while let Some(row) = rows.next()? {
                let bytes = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
                let (position, id) = (Position(row.get(0)?), CommitId(Uuid::from_bytes(row.get(2)?)));
                if visit(StoredRecord { position, id: Some(id), bytes }).is_break() {
                    break;
                }
            }
            Ok(())
        };
        read().map_err(log_error("reading the log"))
    }
}

/// Maps an error of SQLite that occurred while `doing` something.
pub(super) fn log_error(doing: &str) -> impl Fn(Error) -> LogError {
    move |error| {
        let (fault, what_to_do) = meaning(&error);
        let reason = match error {
            Error::FromSqlConversionFailure(..) | Error::InvalidColumnType(..) => {
                "a row is not a commit".to_owned()
            }
            _ => error.to_string(),
        };
        fault.error(format!("{doing} failed ({reason}): {what_to_do}"))
    }
}

fn meaning(error: &Error) -> (Fault, &'static str) {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Fault::Full, "the disk is full; free some space"),
        // Without a code, the query succeeded but a value has the wrong type.
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) | None => {
            let what_to_do = "the file is damaged or truncated, or not a petstore log; check the path (as a last resort, try \
                              .recover of the sqlite3 shell on a copy)";
            (Fault::Damaged, what_to_do)
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Fault::Unreachable, "another process holds the database; stop it")
        }
        Some(ErrorCode::TooBig) => (Fault::TooLarge, "make smaller commits"),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            (Fault::CannotOpen, "make the file and its directory writable by this user")
        }
        // SQLite does not say why a write has failed.
        Some(_) => (Fault::WriteFailed, "check the disk, and the file size limit of the process (ulimit -f)"),
    }
}
