//! Whole histories: checking, copying to another engine, exporting and importing.
//!
//! The digest over the stored bytes proves that two logs are the same, on any engine.

mod copy;
mod export;
mod salvage;
mod tally;

use std::ops::AsyncFnMut;

use thiserror::Error;

pub use copy::{CopyError, CopyStep, Until, copy};
pub use export::{ExportError, LINE_MAX, check_export, export, import};
pub use salvage::{read_around_gaps, salvage_around_gaps};
pub use tally::Tally;

use crate::{
    codec,
    commit::Commit,
    digest::Digest,
    history::{self, History},
    ports::{LogError, LogSource, ReadBound, StoredRecord},
};

/// An incomplete walk.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Broken<E: std::error::Error> {
    /// The tally of the intact records before the error.
    pub intact: Box<Tally>,
    /// The error that ended the walk.
    pub error: E,
}

/// Reads the whole log, and passes each record to `visit` with its commit. Every record is checked: its checksum, its
/// version, its position, and that it does not contradict the previous ones. The first error ends the walk. The log of an
/// unfinished salvage is rejected at its end.
pub async fn walk<E: std::error::Error + From<LogError>>(
    log: &dyn LogSource,
    mut visit: impl AsyncFnMut(&StoredRecord, &Commit) -> Result<(), E>,
) -> Result<Tally, Broken<E>> {
    let mut checked = Checked::default();
    let walked = async {
        let mut last = None;
        loop {
            let records = checked.tally.read_next(log, ReadBound::BATCH).await?;
            if records.is_empty() {
                last.as_ref().map_or(Ok(()), history::check_complete)?;
                return Ok(());
            }
            for record in records {
                let commit = checked.check_next(&record)?;
                visit(&record, &commit).await?;
                checked.tally.add_commit(record, &commit);
                last = Some(commit);
            }
        }
    };
    let walked = walked.await;
    checked.end(walked)
}

/// A history that is checked record by record.
#[derive(Default)]
struct Checked {
    history: History,
    tally: Tally,
}

impl Checked {
    /// Continues after this record, which represents everything before it.
    fn resume(last: StoredRecord) -> Result<Self, LogError> {
        let history = History::after(&codec::decode_stored(&last)?, Digest::of(&last.bytes))?;
        Ok(Self { history, tally: Tally::resume(last) })
    }

    /// Decodes the next record, and checks that it continues the history.
    fn check_next(&mut self, record: &StoredRecord) -> Result<Commit, LogError> {
        let commit = codec::decode_stored(record)?;
        self.history.add(&commit, Digest::of(&record.bytes))?;
        Ok(commit)
    }

    fn end<E: std::error::Error>(self, ended: Result<(), E>) -> Result<Tally, Broken<E>> {
        match ended {
            Ok(()) => Ok(self.tally),
            Err(error) => Err(Broken { intact: Box::new(self.tally), error }),
        }
    }
}
