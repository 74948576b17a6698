//! Reads the intact records of a log that may be damaged.

use std::collections::VecDeque;

use crate::{
    log::{codec, commit::Commit},
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// The records of a log up to a known position, without those that cannot be read.
pub(super) struct IntactRecords<'a> {
    log: &'a dyn LogSource,
    last: Position,
    /// Records that were read together with an earlier one.
    read: VecDeque<StoredRecord>,
}

impl<'a> IntactRecords<'a> {
    /// The intact records up to `last`.
    pub(super) fn of(log: &'a dyn LogSource, last: Position) -> Self {
        Self { log, last, read: VecDeque::new() }
    }

    /// Returns the record at `position` with its commit, or `None` if it is missing, damaged or foreign. Each position
    /// is later than the one before.
    pub(super) async fn at(
        &mut self,
        position: Position,
    ) -> Result<Option<(StoredRecord, Commit)>, LogError> {
        if self.read.is_empty() && position <= self.last {
            match self.log.read(position.before(), ReadBound::BATCH).await {
                Ok(records) => self.read = records.into(),
                Err(error) if matches!(error.fault, Fault::Damaged | Fault::Foreign) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Some(record) = self.read.pop_front() else { return Ok(None) };
        if record.position > position {
            self.read.push_front(record);
            return Ok(None);
        }
        match codec::decode_stored(&record) {
            Ok(commit) => Ok(Some((record, commit))),
            Err(error) if error.fault == Fault::Damaged => Ok(None),
            Err(error) => Err(error),
        }
    }
}
