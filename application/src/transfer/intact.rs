//! A log that may be damaged, and its intact records.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    log::{codec, commit::Commit},
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// The readable part of a log that may be damaged.
#[derive(Clone)]
pub struct SalvagedLog {
    /// The records that can be read.
    pub log: Arc<dyn LogSource>,
    /// The last position that the log is known to have had.
    pub last_known: Position,
    /// Whether it is known where the log ended.
    pub end_is_known: bool,
}

impl SalvagedLog {
    /// Wraps a log whose engine stops reading at the first damage.
    pub async fn new(log: Arc<dyn LogSource>) -> Result<Self, LogError> {
        Ok(Self { last_known: log.head().await?, log, end_is_known: true })
    }
}

/// Reads the records of a log without those that cannot be read.
pub(super) struct IntactRecords {
    damaged: SalvagedLog,
    /// The last position that was passed.
    passed: Position,
    /// Records that were read together with an earlier one.
    read: VecDeque<StoredRecord>,
}

impl IntactRecords {
    pub(super) fn of(log: &SalvagedLog) -> Self {
        Self { damaged: log.clone(), passed: Position::START, read: VecDeque::new() }
    }

    /// Returns the next intact record with its commit, or `None` after the last one. The positions before it are missing,
    /// damaged or foreign. Never fails with [`Fault::Damaged`].
    pub(super) async fn next(&mut self) -> Result<Option<(StoredRecord, Commit)>, LogError> {
        while self.passed < self.damaged.last_known {
            let Some(record) = self.read.pop_front() else {
                match self.damaged.log.read(self.passed, ReadBound::BATCH).await {
                    Ok(records) if records.is_empty() => self.passed = self.damaged.last_known,
                    Ok(records) => self.read = records.into(),
                    Err(error) if matches!(error.fault, Fault::Damaged | Fault::Foreign) => {
                        let damaged = self.passed.next();
                        let next = match self.damaged.log.skip(damaged).await {
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
