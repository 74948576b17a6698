//! Reads a damaged log around its gaps.

use async_trait::async_trait;
use tokio::sync::Mutex;
use uuid::{Builder, Variant, Version};

use super::intact::{IntactRecords, SalvagedLog};
use crate::{
    log::{
        codec,
        commit::{Commit, CommitId},
        digest::Digest,
        history,
    },
    ports::{Durability, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// Every intact record of a damaged log, as one history without gaps. The records before the first gap are unchanged. The
/// later ones have the same node, time and events under new positions and commit ids. The same gaps always give the
/// same bytes.
pub struct Rechained {
    damaged: SalvagedLog,
    /// The first and the last position of each gap, in order.
    pub gaps: Vec<(Position, Position)>,
    head: Position,
    reading: Mutex<Reading>,
}

impl Rechained {
    /// Finds the gaps. Fails where the hash chain breaks without a gap: it is unknown which side was replaced.
    pub async fn open(log: &SalvagedLog) -> Result<Self, LogError> {
        let mut reading = Reading::of(log);
        while reading.next().await?.is_some() {}
        let (head, mut gaps) = (reading.position, reading.gaps);
        if reading.found < log.last_known {
            gaps.push((reading.found.next(), log.last_known));
        }
        Ok(Self { reading: Mutex::new(Reading::of(log)), damaged: log.clone(), gaps, head })
    }
}

/// Reads the records in order.
struct Reading {
    records: IntactRecords,
    /// The gaps before the last record.
    gaps: Vec<(Position, Position)>,
    /// The position of the last record in the damaged log, and its hash there.
    found: Position,
    found_hash: Digest,
    /// The position of the last record in the new history, and its hash there.
    position: Position,
    hash: Digest,
}

impl Reading {
    fn of(log: &SalvagedLog) -> Self {
        let (records, hash) = (IntactRecords::of(log), Digest::of(b""));
        let (found, position) = (Position::START, Position::START);
        Self { records, gaps: vec![], found, found_hash: hash, position, hash }
    }

    async fn next(&mut self) -> Result<Option<StoredRecord>, LogError> {
        let Some((found, commit)) = self.records.next().await? else { return Ok(None) };
        if found.position > self.found.next() {
            self.gaps.push((self.found.next(), found.position.before()));
        } else if commit.previous != self.found_hash {
            return Err(history::broken_chain(found.position));
        }
        (self.found, self.found_hash) = (found.position, Digest::of(&found.bytes));
        let mut record = found;
        if !self.gaps.is_empty() {
            let (position, previous) = (self.position.next(), self.hash);
            let id = id_after(commit.id, previous);
            let bytes = codec::encode(&Commit { position, id, previous, ..commit }).bytes;
            record = StoredRecord { position, id: Some(id), bytes };
        }
        (self.position, self.hash) = (record.position, Digest::of(&record.bytes));
        Ok(Some(record))
    }
}

/// The id of a commit in the history with this head hash: the time of its id in the damaged log, and bits of a hash.
fn id_after(CommitId(id): CommitId, previous: Digest) -> CommitId {
    let hash = Digest::of(&[id.as_bytes(), &previous.0[..]].concat());
    let mut bytes = id.into_bytes();
    bytes[6..].copy_from_slice(&hash.0[..10]);
    let id = Builder::from_bytes(bytes).with_version(Version::SortRand).with_variant(Variant::RFC4122);
    CommitId(id.into_uuid())
}

#[async_trait]
impl LogSource for Rechained {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let mut reading = self.reading.lock().await;
        if after < reading.position {
            *reading = Reading::of(&self.damaged);
        }
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < bound.records && bytes < bound.bytes {
            match reading.next().await? {
                None => break,
                Some(record) if record.position <= after => {}
                Some(record) => {
                    bytes += record.bytes.len();
                    records.push(record);
                }
            }
        }
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.head)
    }

    fn durability(&self) -> Durability {
        self.damaged.log.durability()
    }
}
