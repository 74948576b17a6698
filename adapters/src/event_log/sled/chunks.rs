//! How a record lies in sled: in chunks under `(position, chunk)`, the first of them led by the commit id and
//! the length, so that a missing piece is noticed.
//!
//! sled puts large pages into files of their own, which it never syncs. A page holds up to 17 values, so
//! chunks of 6 KiB keep every page below the 128 KiB from which that happens.

use application::ports::{CommitId, Fault, LogError, Position, Record, StoredRecord};
use bytes::Bytes;
use uuid::Uuid;

use crate::event_log::high_water::Mark;

/// The most bytes under one key.
pub(super) const CHUNK_MAX: usize = 6 * 1024;

const ID_LEN: usize = 16;
const LEADER_LEN: usize = ID_LEN + 4;
const KEY_LEN: usize = 8 + 4;

/// The first key of a position.
pub(super) fn first_key(position: Position) -> [u8; KEY_LEN] {
    key(position, 0)
}

/// The position that a key belongs to.
pub(super) fn position_of(key: &[u8]) -> Option<Position> {
    Some(Position(u64::from_be_bytes(*key.first_chunk()?)))
}

/// The whole record as one atomic batch.
pub(super) fn batch(position: Position, record: &Record) -> ::sled::Batch {
    let len = u32::try_from(record.bytes.len()).expect("records are limited to far less than 4 GiB");
    let (first, rest) = record.bytes.split_at(record.bytes.len().min(CHUNK_MAX - LEADER_LEN));
    let leader = [record.id.0.as_bytes().as_slice(), &len.to_be_bytes(), first].concat();
    let mut batch = ::sled::Batch::default();
    batch.insert(&key(position, 0), leader);
    for (chunk, number) in rest.chunks(CHUNK_MAX).zip(1..) {
        batch.insert(&key(position, number), chunk);
    }
    batch
}

/// A record that is being put together from its chunks.
#[derive(Debug)]
pub(super) struct Assembly {
    mark: Mark,
    len: usize,
    bytes: Vec<u8>,
    next: u32,
}

impl Assembly {
    /// Starts with the first pair of `position`.
    pub(super) fn start(position: Position, pair: &(::sled::IVec, ::sled::IVec)) -> Result<Self, LogError> {
        let (found, value) = pair;
        if **found != first_key(position) {
            return Err(damaged(position, "it is missing"));
        }
        let (id, rest) =
            value.split_first_chunk::<ID_LEN>().ok_or_else(|| damaged(position, "its start is missing"))?;
        let (len, bytes) =
            rest.split_first_chunk::<4>().ok_or_else(|| damaged(position, "its start is missing"))?;
        let mark = Mark { position, commit: CommitId(Uuid::from_bytes(*id)) };
        let mut assembly = Self { mark, len: u32::from_be_bytes(*len) as usize, bytes: Vec::new(), next: 1 };
        assembly.take(bytes)?;
        Ok(assembly)
    }

    /// Adds the next pair.
    pub(super) fn add(&mut self, pair: &(::sled::IVec, ::sled::IVec)) -> Result<(), LogError> {
        let (found, value) = pair;
        if **found != key(self.mark.position, self.next) {
            return Err(damaged(self.mark.position, "a part of it is missing"));
        }
        self.next += 1;
        self.take(value)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.bytes.len() == self.len
    }

    /// Which commit it is.
    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    pub(super) fn finish(self) -> StoredRecord {
        StoredRecord { position: self.mark.position, bytes: Bytes::from(self.bytes) }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > self.len {
            return Err(damaged(self.mark.position, "it is longer than what was written"));
        }
        Ok(())
    }
}

/// What is wrong with the record at `position`.
pub(super) fn damaged(position: Position, what: &str) -> LogError {
    let detail = format!(
        "the record at position {position} is damaged: {what}; restore the store from a backup, or salvage \
         what is sound into a new one"
    );
    LogError::new(Fault::Damaged, detail)
}

fn key(position: Position, chunk: u32) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&position.0.to_be_bytes());
    key[8..].copy_from_slice(&chunk.to_be_bytes());
    key
}
