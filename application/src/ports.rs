//! The ports: interfaces that adapters implement. The docs of each port state what its adapters must do.

use std::{future, str::FromStr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use domain::{Pet, PetId, PetStatus};
use thiserror::Error;
use tokio::{sync::watch, time};

pub use crate::log::commit::{CommitId, LogIdentity, Position, Version};
use crate::{log::commit::Commit, page::ListPets, statistics::Histogram};

/// The maximum size of a record, in bytes: twice the largest commit of the writer. Larger ones count as damaged.
pub const RECORD_MAX: usize = 1024 * 1024;

/// A log that can be read: commits at the positions 1, 2, 3 … without gaps. Exports, salvaged files, read-only stores
/// and remote services implement only this.
#[async_trait]
pub trait LogSource: Send + Sync + 'static {
    /// Returns the records after `after`, oldest first, contiguous, within `bound` (but at least one if there is one).
    /// An empty result means that there are no more records at the moment. Never returns a record that a crash could
    /// still remove. Records before a damaged or missing one are returned; the read after them fails.
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError>;

    /// Returns the last position, as up to date as the engine can know. An [`EventLog`] fails here while it is closed after
    /// a failed write.
    async fn head(&self) -> Result<Position, LogError>;

    /// Returns the last position that is known to exist, which changes when there may be more to read. A hint: it may be
    /// too high, and a change may get lost. An engine that has to poll does so while there are receivers. The default is for
    /// a log that does not grow: its sender is dropped. Readers use [`wait_for_records`].
    fn changes(&self) -> watch::Receiver<Position> {
        watch::channel(Position::START).1
    }

    /// Returns a position after `damaged`, which cannot be read, such that the log holds no record in between. A salvage
    /// continues there. An engine that may have lost many records finds the next one.
    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        Ok(damaged.next())
    }

    /// Describes the durability of an acknowledged record, in words and as checked settings.
    fn durability(&self) -> Durability;

    /// Returns statistics about the storage, for operators. Never waits for a disk or a server.
    fn storage_stats(&self) -> StorageStats {
        StorageStats::default()
    }
}

/// A log that can also be appended to. It is the only durable state.
///
/// Every implementation passes [`contract::check_all`](crate::log::contract::check_all).
#[async_trait]
pub trait EventLog: LogSource {
    /// Appends a prefix of `records`, at least the first, directly after `expected`, and returns the position of the last
    /// record that was stored. The head must be exactly that commit: a different one at the same position is a
    /// [`Conflict`](AppendError::Conflict) too. `Ok` means that exactly the records up to that position were stored by this
    /// call. They survive what [`durability`](LogSource::durability) promises, and every later read and head shows them.
    ///
    /// The writer passes one record, and copies pass up to [`ReadBound::APPEND`], and call again with the rest. An engine
    /// that cannot store several records at the cost of one stores only the first. An error concerns the whole call:
    ///
    /// - [`Conflict`](AppendError::Conflict) and [`NotStored`](AppendError::NotStored): no record was stored.
    /// - [`Unclear`](AppendError::Unclear) and [`Closed`](AppendError::Closed): a prefix may be stored, and possibly all of
    ///   `records`. Read after `expected` before sending the same records again.
    ///
    /// A failure after the first record does not hide the records before it: they are returned as stored, and the next
    /// call meets the failure. If it was a lost reply, the next call gets a conflict with the caller's own record, so
    /// read after a conflict too. Ids may repeat: the log does not compare them with each other.
    ///
    /// A record must not be stored unless this call has stored the one before it: after a conflict, the position of the second
    /// record may be free.
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError>;

    /// Checks whether the engine would accept a record now, without storing one. Called at startup, and after the engine has
    /// rejected a record. `Ok` may be wrong; an error is never wrong.
    async fn check_writable(&self) -> Result<(), LogError> {
        self.head().await.map(|_| ())
    }

    /// Finishes the appends that have begun, and releases files and locks. Later calls may fail with [`Fault::Stopped`].
    /// Dropping the log does the same, without waiting.
    async fn close(&self) {}
}

/// Returns when the log may hold a record after `after`, or after `timeout`.
pub async fn wait_for_records(log: &dyn LogSource, after: Position, timeout: Duration) {
    let mut changes = log.changes();
    let grown = async {
        if changes.wait_for(|last| *last > after).await.is_err() {
            // The log does not grow.
            future::pending::<()>().await;
        }
    };
    // Readers read after the timeout too, in case a change got lost.
    let _ = time::timeout(timeout, grown).await;
}

/// Statistics about the storage. An engine on another machine has none.
#[derive(Debug, Clone, Default)]
pub struct StorageStats {
    /// The time to write and sync a commit, in microseconds.
    pub sync_micros: Option<Arc<Histogram>>,
    /// The size of the log's files, in bytes.
    pub log_bytes: Option<u64>,
    /// The free space on their disk, in bytes.
    pub disk_free: Option<u64>,
    /// The part of the free space that commits may not use, in bytes.
    pub disk_reserved: Option<u64>,
}

/// One encoded commit. Engines store the bytes unchanged, and read at most their [envelope](crate::log::codec::envelope).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The id inside the bytes, so that engines can compare ids without decoding.
    pub id: CommitId,
    /// The commit as [`codec`](crate::log::codec) encoded it: one line, without the line feed.
    pub bytes: Bytes,
}

/// A record as it is stored in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its position in the log.
    pub position: Position,
    /// The commit id that the engine stores next to the bytes, if it stores one. [`codec`](crate::log::codec) rejects a record
    /// whose bytes hold another id.
    pub id: Option<CommitId>,
    /// Exactly what was appended.
    pub bytes: Bytes,
}

impl StoredRecord {
    /// Returns the version of the log up to this record, if the engine stores commit ids.
    pub fn version(&self) -> Version {
        Version { position: self.position, commit: self.id }
    }
}

/// How much one read may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBound {
    /// At most this many records.
    pub records: usize,
    /// Stop after the record that reaches this many bytes.
    pub bytes: usize,
}

impl ReadBound {
    /// A batch: large enough to be fast, small enough to be held in memory a few times over.
    pub const BATCH: Self = Self { records: 4_096, bytes: 4 * 1024 * 1024 };
    /// A batch for one [`append`](EventLog::append): small enough for its timeouts.
    pub const APPEND: Self = Self { records: 1_000, bytes: RECORD_MAX };
    /// Exactly one record.
    pub const ONE: Self = Self { records: 1, bytes: usize::MAX };

    /// Returns as many of the records as one read may return.
    pub fn take(self, records: impl IntoIterator<Item = StoredRecord>) -> Vec<StoredRecord> {
        let mut bytes = 0;
        let fits = |record: &StoredRecord| {
            let fits = bytes < self.bytes;
            bytes += record.bytes.len();
            fits
        };
        records.into_iter().take(self.records).take_while(fits).collect()
    }
}

/// A failed append, named by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AppendError {
    /// `expected` is not the head, and nothing was stored: catch up and decide again.
    #[error("another commit came first")]
    Conflict,
    /// Certainly not stored, and the log is still intact: reply, and keep serving.
    #[error("not stored: {0}")]
    NotStored(LogError),
    /// May or may not be stored, e.g. because the reply was lost: read `expected + 1` before replying.
    #[error("may or may not be stored: {0}")]
    Unclear(LogError),
    /// The log failed or diverged: no more writes until it is reopened.
    #[error("the log is closed: {0}")]
    Closed(LogError),
}

/// An error of the log: a kind that may be published, and a detail for operators.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct LogError {
    /// The kind of error. Its text is safe to publish.
    pub fault: Fault,
    /// One sentence that says what happened and what to do. It may name paths and hosts, so it is for operators only.
    pub detail: String,
}

/// The kinds of errors of a log. Their texts reveal no paths, hosts or system errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// The engine does not respond at the moment.
    #[error("the storage engine does not respond")]
    Unreachable,
    /// A write or a sync failed.
    #[error("a write to storage failed")]
    WriteFailed,
    /// The disk or a quota is full.
    #[error("the storage is full")]
    Full,
    /// A stored record differs from what was written.
    #[error("the log is damaged")]
    Damaged,
    /// The files of the log are no longer where they were opened.
    #[error("the files of the log were deleted, moved or replaced")]
    FilesMissing,
    /// The log changed while it was read.
    #[error("the history in the log has changed")]
    Diverged,
    /// The log was emptied, replaced, or restored to an older state: it lacks commits that this node has applied.
    #[error("the log lacks commits that this node has applied")]
    AnotherLog,
    /// The log holds data that petstore has not written.
    #[error("another program has written to the log")]
    Foreign,
    /// The log has a format or an event that this version of petstore does not support.
    #[error("the log was written by a different version of petstore")]
    UnsupportedFormat,
    /// The store is in use or cannot be opened.
    #[error("the storage cannot be opened")]
    CannotOpen,
    /// The record is larger than the engine accepts.
    #[error("the record is too large for the storage engine")]
    TooLarge,
    /// The engine promises less than this node requires.
    #[error("the storage engine promises less durability than required")]
    NotDurable,
    /// A bug: a task ended unexpectedly, and only a restart helps.
    #[error("an internal component stopped")]
    Stopped,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 13] = [
        Self::Unreachable,
        Self::WriteFailed,
        Self::Full,
        Self::Damaged,
        Self::FilesMissing,
        Self::Diverged,
        Self::AnotherLog,
        Self::Foreign,
        Self::UnsupportedFormat,
        Self::CannotOpen,
        Self::TooLarge,
        Self::NotDurable,
        Self::Stopped,
    ];

    /// The error of this kind with this detail.
    pub fn error(self, detail: impl Into<String>) -> LogError {
        LogError { fault: self, detail: detail.into() }
    }

    /// The name in metrics and responses, for example in alert rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::WriteFailed => "write_failed",
            Self::Full => "full",
            Self::Damaged => "damaged",
            Self::FilesMissing => "files_missing",
            Self::Diverged => "diverged",
            Self::AnotherLog => "another_log",
            Self::Foreign => "foreign",
            Self::UnsupportedFormat => "unsupported_format",
            Self::CannotOpen => "cannot_open",
            Self::TooLarge => "too_large",
            Self::NotDurable => "not_durable",
            Self::Stopped => "stopped",
        }
    }
}

/// The durability that an engine promises for an acknowledged record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    /// The engine, by its URL scheme.
    pub engine: &'static str,
    /// The kind of failure that a record survives.
    pub level: DurabilityLevel,
    /// The promise in one sentence.
    pub promise: String,
    /// The settings that the promise depends on, with their values.
    pub settings: Vec<(String, String)>,
}

/// Levels of durability, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DurabilityLevel {
    /// Lost when the process ends.
    Volatile,
    /// Acknowledged before it is on disk: a power cut can lose the last commits.
    Buffered,
    /// On disk before it is acknowledged.
    Synced,
    /// On the disks of a majority of machines before it is acknowledged.
    Replicated,
}

impl DurabilityLevel {
    const ALL: [Self; 4] = [Self::Volatile, Self::Buffered, Self::Synced, Self::Replicated];

    /// The name in options, metrics and responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Buffered => "buffered",
            Self::Synced => "synced",
            Self::Replicated => "replicated",
        }
    }
}

impl FromStr for DurabilityLevel {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|level| level.name() == name);
        named.ok_or("expected volatile, buffered, synced or replicated")
    }
}

/// Serves every read from memory. No method waits for I/O.
pub trait ReadModel: Send + Sync + 'static {
    /// Adds the pets of a commit. Commits arrive in order, each exactly once.
    fn apply(&mut self, commit: &Commit);
    /// Returns the pet with this id.
    fn get(&self, id: PetId) -> Option<Pet>;
    /// Returns the pets of a page in id order, and the id after which the next page begins; `None` on the last page.
    fn list(&self, query: &ListPets) -> (Vec<Pet>, Option<PetId>);
    /// The number of pets; with a status, only of those that have it.
    fn count(&self, status: Option<PetStatus>) -> usize;
}

/// The wall clock. It may jump and be wrong: no decision depends on it.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> DateTime<Utc>;
}
