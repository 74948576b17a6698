//! The records of a log that is in use, from a position on, for readers outside: one per line, in the format of an export.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use super::{manifest::Passed, still_holds};
use crate::{
    codec,
    digest::Digest,
    ports::{LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// How much is read at a time: several readers may hold so much.
const BATCH: ReadBound = ReadBound { records: 1_024, bytes: 256 * 1024 };

/// Reads on from a position. Hands out only what is durable, and never records of two histories.
pub struct Feed {
    log: Arc<dyn LogSource>,
    passed: Passed,
    events: u64,
    last: Option<StoredRecord>,
}

impl Feed {
    pub(crate) fn after(log: Arc<dyn LogSource>, after: Position) -> Self {
        Self { log, passed: Passed::after(after), events: 0, last: None }
    }

    /// The position of the last record that was handed out.
    pub fn position(&self) -> Position {
        self.passed.last()
    }

    /// The next records up to `end` as lines. Empty: nothing more for now.
    pub async fn lines(&mut self, end: Position) -> Result<Vec<u8>, LogError> {
        let after = self.position();
        if after >= end {
            return Ok(vec![]);
        }
        let mut records = self.log.read(after, BATCH).await?;
        records.retain(|record| record.position <= end);
        if let (Some(last), false) = (&self.last, records.is_empty()) {
            still_holds(&*self.log, last).await?;
        }
        let mut lines = Vec::with_capacity(records.iter().map(|record| record.bytes.len() + 1).sum());
        for record in &records {
            let commit = codec::decode_stored(record)?;
            self.events += commit.entries.len() as u64;
            self.passed.take(&record.bytes);
            lines.extend_from_slice(&record.bytes);
            lines.push(b'\n');
        }
        self.last = records.pop().or(self.last.take());
        Ok(lines)
    }

    /// Returns when there may be more, or after `timeout`.
    pub async fn wait(&self, timeout: Duration) -> Result<(), LogError> {
        self.log.wait_for(self.position(), timeout).await
    }

    /// The last line: what was handed out.
    pub fn manifest(&self, now: DateTime<Utc>) -> Vec<u8> {
        // The head hash of the log before the first record is known only if that log was empty.
        let before = self.passed.is_from_the_start().then(|| Digest::of(b""));
        let head_hash = self.last.as_ref().map(|record| Digest::of(&record.bytes)).or(before);
        let mut line = Vec::new();
        let manifest = self.passed.manifest(self.events, head_hash, now);
        manifest.write(&mut line).expect("memory takes every write");
        line
    }
}
