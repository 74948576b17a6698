//! Consecutive records that are appended together.

use crate::ports::{Position, ReadBound, Record};

/// Consecutive records that are not stored yet.
#[derive(Debug)]
pub(super) struct Batch {
    /// The position of the first record.
    pub(super) first: Position,
    pub(super) records: Vec<Record>,
    bytes: usize,
}

impl Batch {
    /// An empty batch, whose first record will have this position.
    pub(super) fn at(first: Position) -> Self {
        Self { first, records: Vec::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, record: Record) {
        self.bytes += record.bytes.len();
        self.records.push(record);
    }

    /// Whether the batch is as large as [`ReadBound::APPEND`] allows.
    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= ReadBound::APPEND.records || self.bytes >= ReadBound::APPEND.bytes
    }

    /// Removes the first records, which are stored now.
    pub(super) fn remove(&mut self, count: usize) {
        self.first = Position(self.first.0 + count as u64);
        self.bytes -= self.records.drain(..count).map(|record| record.bytes.len()).sum::<usize>();
    }
}
