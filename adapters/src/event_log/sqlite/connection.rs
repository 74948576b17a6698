//! The statements sent to SQLite over two connections: one writes, and the other reads at the same time.

use std::{
    fmt::Write as _,
    os::unix::ffi::OsStrExt as _,
    path::{self, Path},
    time::Duration,
};

use application::ports::{CommitId, Fault, LogError, Position, StoredRecord};
use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, Error, OpenFlags, OptionalExtension as _, Row, config::DbConfig};
use uuid::Uuid;

use super::{error_mapping::log_error, length};
use crate::event_log::embedded::{Closing, Mark, Records, Visit};

/// What marks a database as ours: the letters "pets".
const APPLICATION_ID: i32 = 0x7065_7473;
/// The version of the table that this program knows.
pub(super) const VERSION: i32 = 1;
/// How long to wait for another tool that looks at the database.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);

const LOOK: &str = "\
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) \
    FROM pragma_application_id, pragma_user_version";
/// We move the write-ahead log into the database ourselves; it is cut back to 64 MiB then.
const SET_UP: &str = "\
    PRAGMA journal_mode = WAL; \
    PRAGMA synchronous = FULL; \
    PRAGMA wal_autocheckpoint = 0; \
    PRAGMA journal_size_limit = 67108864";
const IN_FORCE: &str = "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous";
const SYNCHRONOUS_FULL: i32 = 2;
/// Damage is noticed rather than read around.
const DISTRUST: &str = "PRAGMA cell_size_check = true; PRAGMA trusted_schema = false";

const LAST: &str = "SELECT position, id FROM commits ORDER BY position DESC LIMIT 1";
const READ: &str =
    "SELECT position, bytes FROM commits WHERE position > ?1 AND position <= ?2 ORDER BY position";

/// What was found in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    Log,
}

/// Connects to the database and looks what it is, without changing anything: the write-ahead log stays as it is, even if
/// the connection is closed again.
pub(super) fn open(path: &Path, wal: &Path) -> Result<(Connection, Content), LogError> {
    let doing = format!("opening {}", path.display());
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(log_error(&doing))?;
    // An empty one that SQLite creates now goes again.
    on_close(&connection, if length(wal) > 0 { Closing::AsIs } else { Closing::Tidy })?;
    let content = content(&connection, path)?;
    Ok((connection, content))
}

/// Connects to a database that nobody changes, to read it only: SQLite creates no files and takes no locks.
pub(super) fn open_unchanging(path: &Path) -> Result<(Connection, Content), LogError> {
    let doing = format!("opening {} for reading", path.display());
    let absolute = path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let uri = format!("file://{}?immutable=1", percent_encoded(absolute.as_os_str().as_bytes()));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = connect(Path::new(&uri), flags).map_err(log_error(&doing))?;
    let content = content(&connection, path)?;
    Ok((connection, content))
}

/// What the database holds.
fn content(connection: &Connection, path: &Path) -> Result<Content, LogError> {
    let doing = format!("opening {}", path.display());
    let found = connection.query_row(LOOK, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (fault, what) = match found.map_err(log_error(&doing))? {
        (0, 0, 0) => return Ok(Content::Nothing),
        (APPLICATION_ID, VERSION, _) => return Ok(Content::Log),
        (APPLICATION_ID, version, _) if version > VERSION => (
            Fault::NewerFormat,
            format!("has version {version}, this program knows {VERSION}; run a newer one"),
        ),
        _ => (Fault::CannotOpen, "is not a petstore log; choose another path".to_owned()),
    };
    Err(LogError::new(fault, format!("the file {} {what}", path.display())))
}

/// Makes commits durable, and sees that the settings are in force.
pub(super) fn set_up(connection: &Connection) -> Result<(), LogError> {
    let set_up = || {
        connection.execute_batch(SET_UP)?;
        connection.query_row(IN_FORCE, [], |row| Ok((row.get(0)?, row.get(1)?)))
    };
    let (mode, synchronous): (String, i32) = set_up().map_err(log_error("setting up the log"))?;
    if mode == "wal" && synchronous == SYNCHRONOUS_FULL {
        return on_close(connection, Closing::AsIs);
    }
    let detail = format!(
        "SQLite cannot make commits durable here (journal_mode {mode}, synchronous {synchronous}); choose a local disk"
    );
    Err(LogError::new(Fault::CannotOpen, detail))
}

pub(super) fn last(connection: &Connection) -> Result<Mark, LogError> {
    let mark = |row: &Row<'_>| Ok(Mark { position: position(row, 0)?, commit: commit_id(row, 1)? });
    let last = connection.query_row(LAST, [], mark).optional();
    last.map(|last| last.unwrap_or(Mark::START)).map_err(log_error("reading the end of the log"))
}

/// Moves the write-ahead log into the database, as far as readers allow; `false` if they do not.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<bool, LogError> {
    let checkpoint = format!("PRAGMA wal_checkpoint({mode})");
    let moved = connection.query_row(&checkpoint, [], |row| Ok(row.get::<_, i64>(0)? == 0));
    moved.map_err(log_error("moving commits into the database"))
}

/// Decides whether closing the connection leaves the write-ahead log as it is. Otherwise SQLite moves it into the
/// database and removes it, and tells nobody if that fails.
pub(super) fn on_close(connection: &Connection, closing: Closing) -> Result<(), LogError> {
    let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, closing == Closing::AsIs);
    set.map(drop).map_err(log_error("setting up the log"))
}

/// A connection that reads.
#[derive(Debug)]
pub(super) struct Reader(pub(super) Mutex<Connection>);

impl Reader {
    pub(super) fn connect(path: &Path) -> Result<Self, LogError> {
        let doing = format!("opening {} for reading", path.display());
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(log_error(&doing))?;
        Ok(Self(Mutex::new(connection)))
    }
}

impl Records for Reader {
    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let mut read = || {
            let connection = self.0.lock();
            let mut statement = connection.prepare_cached(READ)?;
            let mut rows = statement.query([after, last].map(|position| position.0.cast_signed()))?;
            while let Some(row) = rows.next()? {
                let bytes = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
                if visit(StoredRecord { position: position(row, 0)?, bytes }).is_break() {
                    break;
                }
            }
            Ok(())
        };
        read().map_err(log_error("reading the log"))
    }
}

fn connect(path: &Path, mode: OpenFlags) -> Result<Connection, Error> {
    // No URIs unless they are asked for: a path is a path.
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_PATIENCE)?;
    connection.execute_batch(DISTRUST)?;
    Ok(connection)
}

/// A path as it is written in a URI.
fn percent_encoded(path: &[u8]) -> String {
    path.iter().fold(String::new(), |mut uri, byte| {
        let plain = byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
        let written = if plain { write!(uri, "{}", char::from(*byte)) } else { write!(uri, "%{byte:02X}") };
        written.expect("writing to a string never fails");
        uri
    })
}

fn position(row: &Row<'_>, column: usize) -> Result<Position, Error> {
    let stored: i64 = row.get(column)?;
    u64::try_from(stored).map(Position).map_err(|_| Error::IntegralValueOutOfRange(column, stored))
}

pub(super) fn commit_id(row: &Row<'_>, column: usize) -> Result<CommitId, Error> {
    row.get(column).map(Uuid::from_bytes).map(CommitId)
}
