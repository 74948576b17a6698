//! Whole histories: checking, copying to another engine, exporting and importing.
//!
//! The head hash proves that two logs are the same, on any engine.

mod copy;
mod cut;
mod export;
mod intact;
mod merge;
mod rechained;
mod stream;
mod tally;

use std::ops::AsyncFnMut;

pub use copy::{CopyError, CopyStep, copy, follow};
pub use cut::{Cut, End};
pub use export::{check_export, export, import};
pub use intact::SalvagedLog;
pub use merge::{Found, MergeError, MergedLog, merge};
pub use rechained::Rechained;
pub use stream::{Decoder, Step};
pub use tally::Tally;

use crate::{
    log::{codec, commit::Commit},
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// Reads the whole log into `tally`, and passes each record to `visit` with its commit. Every record is checked: its
/// checksum, its version, its position, and that it does not contradict the previous ones. The first error ends the walk;
/// the tally then counts the intact records before it.
pub async fn walk<E: From<LogError>>(
    log: &dyn LogSource,
    tally: &mut Tally,
    mut visit: impl AsyncFnMut(&StoredRecord, &Commit) -> Result<(), E>,
) -> Result<(), E> {
    loop {
        let records = tally.read_next(log, ReadBound::BATCH).await?;
        if records.is_empty() {
            return Ok(());
        }
        for record in records {
            let commit = tally.check_next(&record)?;
            visit(&record, &commit).await?;
            tally.add_commit(record, &commit);
        }
    }
}

/// Whether the log holds this record, which may come from an engine that stores no ids. `None` if the log shows no record
/// at its position.
async fn holds(log: &dyn LogSource, record: &StoredRecord) -> Result<Option<bool>, LogError> {
    let found = log.read(record.position.before(), ReadBound::ONE).await?;
    Ok(found.first().map(|found| found.bytes == record.bytes))
}

/// Reads the commit at `position`, which the log is known to hold, with its record.
pub async fn commit_at(log: &dyn LogSource, position: Position) -> Result<(StoredRecord, Commit), LogError> {
    let found = log.read(position.before(), ReadBound::ONE).await?.pop();
    let record = found.ok_or_else(|| not_visible(position))?;
    let commit = codec::decode_stored(&record)?;
    Ok((record, commit))
}

/// A replica of the engine is behind the head that it reported; retry.
fn not_visible(position: Position) -> LogError {
    Fault::Unreachable.error(format!("the commit at position {position} is not visible yet; try again"))
}
