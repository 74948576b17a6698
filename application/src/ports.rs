//! What the application needs from outside. Each port says what its adapters have to do.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use domain::PetId;
use serde::Serialize;
use thiserror::Error;

pub use crate::commit::{CommitId, LogIdentity, Position, Version};
use crate::{
    commit::Commit,
    page::{ListPets, PageEnd, PetView},
    statistics::Histogram,
};

/// A log that can be read: commits at the positions 1, 2, 3 … without gaps. Exports, salvaged files, stores that are opened
/// read-only and remote services are only this.
#[async_trait]
pub trait LogSource: Send + Sync + 'static {
    /// Returns the records after `after`, oldest first, contiguous, within `bound` (but at least one if there is one). Empty:
    /// nothing more for now. Never returns a record that a crash could still remove.
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError>;

    /// Returns the last position, as up to date as the engine can tell.
    async fn head(&self) -> Result<Position, LogError>;

    /// Returns when there may be a record after `after`, or after `timeout`. A hint: it may return early.
    async fn wait_for(&self, after: Position, timeout: Duration) -> Result<(), LogError>;

    /// Describes what this engine promises about an acknowledged record, in words and as checked settings.
    fn durability(&self) -> Durability;

    /// Returns what is known about the storage, for operators. Never waits for a disk or a server.
    fn storage_stats(&self) -> StorageStats {
        StorageStats::default()
    }
}

/// A log that can also be appended to: the only durable state there is.
///
/// Every implementation passes [`contract::check_all`](crate::contract::check_all).
#[async_trait]
pub trait EventLog: LogSource {
    /// Appends `record` directly after `expected`, completely or not at all. The head must be exactly that commit: a
    /// different one at the same position is a [`Conflict`](AppendError::Conflict) too. After `Ok` the record survives what
    /// [`durability`](LogSource::durability) promises, and every later read and head shows it.
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError>;

    /// Returns the size of the largest record that the engine accepts now, in bytes. Larger ones are rejected as
    /// [`Fault::TooLarge`].
    fn record_limit(&self) -> usize {
        usize::MAX
    }

    /// Checks whether the engine would accept a record now, as far as it can tell without storing one. Called after it has
    /// rejected one; `Ok` may be wrong, an error may not.
    async fn check_writable(&self) -> Result<(), LogError> {
        self.head().await.map(|_| ())
    }
}

/// What an engine knows about its storage; an engine on another machine knows nothing.
#[derive(Debug, Clone, Default)]
pub struct StorageStats {
    /// How long writing and syncing a commit took, in microseconds.
    pub sync_micros: Option<Arc<Histogram>>,
    /// How many bytes the files of the log have.
    pub log_bytes: Option<u64>,
    /// How many bytes are free on their disk.
    pub disk_free: Option<u64>,
    /// How many of those have to stay free.
    pub disk_reserved: Option<u64>,
}

/// One encoded commit. Engines store the bytes unchanged and never interpret them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The id inside the bytes, for engines that want to recognise their own.
    pub id: CommitId,
    /// The commit as [`codec`](crate::codec) encoded it.
    pub bytes: Bytes,
}

/// A record as it is stored in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Where it is stored.
    pub position: Position,
    /// The commit id that the engine stores next to the bytes, if it stores one. [`codec`](crate::codec) rejects a record
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
    /// Large enough to be fast, small enough to be held in memory a few times over.
    pub const BATCH: Self = Self { records: 4_096, bytes: 4 * 1024 * 1024 };
    /// Exactly one record.
    pub const ONE: Self = Self { records: 1, bytes: usize::MAX };
}

/// Why an append failed, named by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AppendError {
    /// `expected` is not the head, nothing was stored: read on, decide again.
    #[error("another commit came first")]
    Conflict,
    /// Certainly not stored, and the log is still intact: reply, and keep serving.
    #[error("not stored: {0}")]
    NotStored(LogError),
    /// May or may not be stored, e.g. because the reply was lost: read `expected + 1` before replying.
    #[error("may or may not be stored: {0}")]
    Unclear(LogError),
    /// The log failed or diverged: no more writes until it has been reopened.
    #[error("the log is closed: {0}")]
    Closed(LogError),
}

/// An error of the log: a kind that may be published, and a detail for operators.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct LogError {
    /// The kind of error. Its text is safe to publish.
    pub fault: Fault,
    /// One sentence that says what happened and what to do. May name paths and hosts: operators only.
    pub detail: String,
}

impl LogError {
    /// Joins a kind with its detail.
    pub fn new(fault: Fault, detail: impl Into<String>) -> Self {
        Self { fault, detail: detail.into() }
    }
}

/// What can be wrong with a log. The texts reveal no paths, hosts or system errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// The engine does not respond at the moment.
    #[error("the storage engine does not respond")]
    Unreachable,
    /// A write or a sync failed.
    #[error("a write to storage failed")]
    WriteFailed,
    /// Too little space to accept more.
    #[error("the storage is full")]
    Full,
    /// What is stored is not what was written.
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
    /// The log holds something that petstore has not written.
    #[error("another program has written to the log")]
    Foreign,
    /// The log has a format or an event that this version of petstore does not read.
    #[error("the log was written by a different version of petstore")]
    UnsupportedFormat,
    /// Another process holds the store, or it is not ours to open.
    #[error("the storage cannot be opened")]
    CannotOpen,
    /// The record is larger than the engine accepts.
    #[error("the record is too large for the storage engine")]
    TooLarge,
    /// The engine promises less than this node requires.
    #[error("the storage engine promises less durability than required")]
    NotDurable,
    /// Our own bug: a part of the program ended unexpectedly, and only a restart brings it back.
    #[error("an internal component stopped")]
    Stopped,
}

impl Fault {
    /// All of them.
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

    /// Its name for programs, such as alert rules.
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

/// What an engine promises about an acknowledged record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    /// The engine, by its URL scheme.
    pub engine: &'static str,
    /// What kind of failure a record survives.
    pub level: DurabilityLevel,
    /// The same in one sentence.
    pub promise: String,
    /// The settings that were looked up, with their values.
    pub settings: Vec<(String, String)>,
}

impl Durability {
    /// Rejects an engine that promises less than required.
    pub(crate) fn reaches(&self, required: DurabilityLevel) -> Result<(), LogError> {
        if self.level >= required {
            return Ok(());
        }
        let detail = format!("the log promises less than required: {}", self.promise);
        Err(LogError::new(Fault::NotDurable, detail))
    }
}

/// From nothing to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityLevel {
    /// Gone when the process ends.
    Volatile,
    /// Acknowledged before it is on disk: a power cut can lose the last commits.
    Buffered,
    /// On disk before it is acknowledged.
    Synced,
    /// On the disks of a majority of machines before it is acknowledged.
    Replicated,
}

/// Serves every read from memory. Implementations lock internally; no call waits for I/O.
pub trait ReadModel: Send + Sync + 'static {
    /// Makes the commit visible, all of it at once. Commits arrive in order, each exactly once.
    fn apply(&self, commit: &Commit);
    /// Hands the pet with this id to `sink`, if there is one, and says at which version that was looked up. Nothing changes
    /// until `sink` returns, so it must be quick.
    fn get(&self, id: PetId, sink: &mut dyn FnMut(PetView<'_>)) -> Version;
    /// Hands the pets that the query asks for to `sink`, in id order, all of the same version. Nothing changes until `sink`
    /// returns, so it must be quick.
    fn list(&self, query: &ListPets, sink: &mut dyn FnMut(PetView<'_>)) -> PageEnd;
    /// The last commit that is visible.
    fn version(&self) -> Version;
    /// How many pets there are.
    fn count(&self) -> usize;
}

/// Tells the time. It may jump and be wrong: nothing that matters is decided by it alone.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> DateTime<Utc>;
}
