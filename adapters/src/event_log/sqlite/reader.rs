//! Reads records beside the one that writes, over a connection of its own.

use std::path::Path;

use application::ports::{Fault, LogError, Position, ReadBound, StoredRecord};
use bytes::Bytes;
use rusqlite::{Connection, Error, OpenFlags};

use super::{
    engine::{BUSY_PATIENCE, position},
    trouble::explain,
};

const READ: &str =
    "SELECT position, bytes FROM commits WHERE position > ?1 AND position <= ?2 ORDER BY position";

const LAST: &str = "SELECT max(position) FROM commits";

/// A connection that reads.
#[derive(Debug)]
pub(super) struct Reader(Connection);

impl Reader {
    /// Connects to a database that an [`Engine`] has prepared.
    pub(super) fn connect(path: &Path) -> Result<Self, LogError> {
        let connect = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY_PATIENCE)?;
            connection.pragma_update(None, "cell_size_check", true)?;
            connection.pragma_update(None, "trusted_schema", false)?;
            Ok(connection)
        };
        connect()
            .map(Self)
            .map_err(|error: Error| explain(&format!("opening {} for reading", path.display()), &error))
    }

    /// Records after `after` up to `last`, which is known to be there, within `bound`.
    pub(super) fn read(
        &self,
        after: Position,
        last: Position,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let found = self.rows(after, last, bound).map_err(|error| explain("reading the log", &error))?;
        // A damaged page may hide rows, and then nothing else tells that they are missing.
        let none_of_some = (found.is_empty() && after < last).then_some(after.next());
        let expected = (after.0 + 1..).map(Position);
        let after_a_gap = found.iter().zip(expected).find(|(record, expected)| record.position != *expected);
        match none_of_some.or(after_a_gap.map(|(_, expected)| expected)) {
            None => Ok(found),
            Some(missing) => {
                let detail = format!(
                    "position {missing} is missing from the log; restore it from a backup, or salvage what is left \
                     into a new one"
                );
                Err(LogError::new(Fault::Damaged, detail))
            }
        }
    }

    /// The last position there is, whether or not all before it can be read.
    pub(super) fn last(&self) -> Result<Position, LogError> {
        let last = self.0.query_row(LAST, [], |row| Ok(row.get::<_, Option<i64>>(0)?.unwrap_or(0)));
        let last = last.map_err(|error| explain("reading the log", &error))?;
        Ok(Position(u64::try_from(last).unwrap_or(0)))
    }

    fn rows(&self, after: Position, last: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, Error> {
        let Ok(after) = i64::try_from(after.0) else { return Ok(vec![]) };
        let last = i64::try_from(last.0).unwrap_or(i64::MAX);
        let mut statement = self.0.prepare_cached(READ)?;
        let mut rows = statement.query([after, last])?;
        let mut found = Vec::new();
        let mut room = bound.bytes;
        while found.len() < bound.records && (room > 0 || found.is_empty()) {
            let Some(row) = rows.next()? else { break };
            let bytes = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
            room = room.saturating_sub(bytes.len());
            found.push(StoredRecord { position: position(row, 0)?, bytes });
        }
        Ok(found)
    }
}
