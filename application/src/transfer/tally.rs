//! The running totals and checks of a history.

use chrono::{DateTime, Utc};

use super::holds;
use crate::{
    log::{codec, commit::Commit, digest::Digest, history::History},
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// A running tally of consecutive records, up to an end. It also checks the records of a whole history.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// The position before the first record.
    pub(super) after: Position,
    /// The last position that is read, if it is not the head.
    pub end: Option<Position>,
    /// The number of events.
    pub events: u64,
    /// The total size of the records, in bytes.
    pub bytes: u64,
    /// The times of the first and the last commit.
    pub span: Option<(DateTime<Utc>, DateTime<Utc>)>,
    pub(super) last: Option<StoredRecord>,
    /// The checked records, up to the last one.
    history: History,
}

impl Tally {
    /// An empty tally. The first record follows `after`, and the last one is at `end`, if that is not the head.
    pub fn between(after: Position, end: Option<Position>) -> Self {
        Self { after, end, ..Self::default() }
    }

    /// A tally that continues after this record. Its totals count only later records.
    pub(super) fn resume(last: StoredRecord) -> Result<Self, LogError> {
        let history = History::after(&codec::decode_stored(&last)?, Digest::of(&last.bytes))?;
        Ok(Self { after: last.position, last: Some(last), history, ..Self::default() })
    }

    /// Decodes the next record, and checks that it continues the history.
    pub(super) fn check_next(&mut self, record: &StoredRecord) -> Result<Commit, LogError> {
        let commit = codec::decode_stored(record)?;
        self.history.add(&commit, Digest::of(&record.bytes))?;
        Ok(commit)
    }

    /// The position of the last record.
    pub fn position(&self) -> Position {
        self.last.as_ref().map_or(self.after, |last| last.position)
    }

    /// The head hash, which identifies the whole history and which the next record will contain. `None` without
    /// records, if the log before them is unknown.
    pub fn head_hash(&self) -> Option<Digest> {
        let empty = || (self.after == Position::START).then(|| Digest::of(b""));
        self.last.as_ref().map(|last| Digest::of(&last.bytes)).or_else(empty)
    }

    /// Adds the next record with the commit in it.
    pub fn add_commit(&mut self, record: StoredRecord, commit: &Commit) {
        self.add(record);
        self.events += commit.entries.len() as u64;
        self.span = Some((self.span.map_or(commit.time, |(first, _)| first), commit.time));
    }

    /// Adds the next record, without its events.
    pub(super) fn add(&mut self, record: StoredRecord) {
        self.bytes += record.bytes.len() as u64;
        self.last = Some(record);
    }

    /// Reads the records after the last one. An empty result is the end, or means that there are no more at the moment. Fails if the
    /// log was replaced, because the records of two histories must not be mixed. The first record proves the last one with
    /// its hash; only a record that does not follow needs a second read, to tell a replaced log from a damaged one.
    pub async fn read_next(
        &self,
        log: &dyn LogSource,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let left = self.end.map_or(u64::MAX, |end| end.0.saturating_sub(self.position().0));
        if left == 0 {
            return Ok(vec![]);
        }
        let records = bound.records.min(usize::try_from(left).unwrap_or(usize::MAX));
        let records = log.read(self.position(), ReadBound { records, ..bound }).await?;
        if let (Some(last), Some(next)) = (self.last.as_ref(), records.first())
            && !codec::decode_stored(next).is_ok_and(|commit| commit.previous == Digest::of(&last.bytes))
            && holds(log, last).await? != Some(true)
        {
            return Err(Fault::Diverged.error(format!(
                "the log was replaced while it was read: the commit at position {} is different; start again",
                last.position
            )));
        }
        Ok(records)
    }
}
