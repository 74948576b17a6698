//! Reads the intact records of a log that may be damaged.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    log::{codec, commit::Commit},
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// The records of a log up to a known position, without those that cannot be read.
pub(super) struct IntactRecords {
    log: Arc<dyn LogSource>,
    /// The last position that was passed.
    passed: Position,
    last: Position,
    /// Records that were read together with an earlier one.
    read: VecDeque<StoredRecord>,
}

impl IntactRecords {
    /// The intact records up to `last`.
    pub(super) fn of(log: Arc<dyn LogSource>, last: Position) -> Self {
        Self { log, passed: Position::START, last, read: VecDeque::new() }
    }

    /// Returns the next intact record with its commit, or `None` after the last one. The positions before it are missing,
    /// damaged or foreign. Never fails with [`Fault::Damaged`].
    pub(super) async fn next(&mut self) -> Result<Option<(StoredRecord, Commit)>, LogError> {
        while self.passed < self.last {
            let Some(record) = self.read.pop_front() else {
                match self.log.read(self.passed, ReadBound::BATCH).await {
                    Ok(records) if records.is_empty() => self.passed = self.last,
                    Ok(records) => self.read = records.into(),
                    Err(error) if matches!(error.fault, Fault::Damaged | Fault::Foreign) => {
                        let damaged = self.passed.next();
                        let next = match self.log.skip(damaged).await {
                            // The next record is damaged too.
                            Err(error) if error.fault == Fault::Damaged => damaged.next(),
                            next => next?,
                        };
                        // A server that names an earlier position must not stop the progress.
                        self.passed = next.before().max(damaged);
                    }
                    Err(error) => return Err(error),
                }
                continue;
            };
            self.passed = record.position;
            match codec::decode_stored(&record) {
                Ok(commit) => return Ok(Some((record, commit))),
                Err(error) if error.fault == Fault::Damaged => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
