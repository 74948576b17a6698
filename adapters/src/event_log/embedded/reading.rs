//! Reading records in order, whatever they are read from.

use std::ops::ControlFlow;

use application::ports::{Fault, LogError, Position, ReadBound, StoredRecord};

use super::panics;

/// Takes one record after another, until it has enough.
pub type Visit<'a> = dyn FnMut(StoredRecord) -> ControlFlow<()> + 'a;

/// Something that holds records.
pub trait Records: Send + Sync + 'static {
    /// Hands the records after `after` up to `last`, which exists, to `visit`, oldest first, until it breaks.
    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError>;
}

/// Records after `after` up to `last`, without a gap and within `bound`. What precedes an error is returned first; the
/// next read finds the error again.
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
        // A damaged page may hide records, and then nothing else tells that they are missing.
        Ok(()) => Err(damaged(next, "it is missing")),
    }
}

/// What is wrong with the record at `position`.
pub fn damaged(position: Position, what: &str) -> LogError {
    let detail = format!(
        "the record at position {position} is damaged: {what}; restore the store from a backup, or salvage what is \
         intact into a new one"
    );
    LogError::new(Fault::Damaged, detail)
}
