//! Reads records in order, from an engine or from salvaged files.

use std::ops::ControlFlow;

use application::ports::{Fault, LogError, Position, ReadBound, StoredRecord};

use super::panics;

/// Receives one record after another. Breaks to stop.
pub type Visit<'a> = dyn FnMut(StoredRecord) -> ControlFlow<()> + 'a;

/// A source of records.
pub trait Records: Send + Sync + 'static {
    /// Passes records to `visit`, oldest first, until `visit` breaks: those after `after`, up to and including `last`. The
    /// record at `last` exists.
    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError>;

    /// See [`LogSource::skip`](application::ports::LogSource::skip). Must not block.
    fn skip(&self, damaged: Position) -> Position {
        damaged.next()
    }
}

/// Returns the records after `after` up to `last`, without gaps and within `bound`. The records before an error are
/// returned first; the next read returns the error.
pub(crate) fn read_within(
    records: &dyn Records,
    after: Position,
    last: Position,
    bound: ReadBound,
) -> Result<Vec<StoredRecord>, LogError> {
    let mut found: Vec<StoredRecord> = Vec::new();
    if after >= last {
        return Ok(found);
    }
    let mut room = bound.bytes;
    let mut next = after.next();
    let visited = panics::reading("reading the log", || {
        records.visit(after, last, &mut |record| {
            if record.position != next {
                return ControlFlow::Break(());
            }
            next = next.next();
            room = room.saturating_sub(record.bytes.len());
            found.push(record);
            if found.len() < bound.records && room > 0 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    });
    match visited {
        _ if !found.is_empty() => Ok(found),
        Err(error) => Err(error),
        // A damaged page can hide records without an error.
        Ok(()) => Err(missing(next)),
    }
}

/// The error for a damaged record at `position`.
pub fn damaged(position: Position, what: &str) -> LogError {
    Fault::Damaged.error(format!("the commit at position {position} is damaged: {what}"))
}

/// The error for a missing record at `position`.
pub fn missing(position: Position) -> LogError {
    Fault::Damaged.error(format!("the commit at position {position} is missing"))
}
