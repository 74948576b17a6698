//! What the application needs from the world. Each port says what an adapter owes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use domain::{Pet, PetId};
use thiserror::Error;

pub use crate::commit::{CommitId, Position, Version};
use crate::{
    commit::Commit,
    page::{ListPets, Page},
    principal::{Principal, RefusedKey},
};

/// The append-only log of commits: the only durable state there is. Positions count 1, 2, 3 … without gaps.
///
/// Every implementation passes [`contract::check_all`](crate::contract::check_all).
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Stores `record` right after `expected`, whole or not at all. The head must be that very commit: another one
    /// at the same position is a [`Conflict`](AppendError::Conflict) like any other. After `Ok` the record survives
    /// what [`durability`](Self::durability) promises, and every later read and head shows it.
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError>;

    /// Records after `after`, oldest first, contiguous, within `bound` (but at least one if there is one).
    /// Empty: nothing more for now. Never shows a record that a crash could still take back.
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError>;

    /// The last position, as up to date as the engine can tell.
    async fn head(&self) -> Result<Position, LogError>;

    /// Returns when there may be something beyond `position`, or after `patience`. A hint: it may wake early.
    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError>;

    /// What this engine promises about an acknowledged record, in words and as checked facts.
    fn durability(&self) -> Durability;
}

/// One encoded commit. Engines store the bytes as they are and look inside nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The id inside the bytes, for engines that want to recognise their own.
    pub id: CommitId,
    /// What [`codec`](crate::codec) made of the commit.
    pub bytes: Bytes,
}

/// A record as it stands in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Where it stands.
    pub position: Position,
    /// Exactly what was appended.
    pub bytes: Bytes,
}

/// How much one read may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBound {
    /// At most so many records.
    pub records: usize,
    /// Stop after the record that reaches so many bytes.
    pub bytes: usize,
}

impl ReadBound {
    /// Large enough to be fast, small enough to be held in memory a few times over.
    pub const BATCH: Self = Self { records: 4_096, bytes: 4 * 1024 * 1024 };
    /// Exactly one record.
    pub const ONE: Self = Self { records: 1, bytes: usize::MAX };
}

/// Why an append did not end well, named by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AppendError {
    /// `expected` is not the head, nothing was stored: read on, decide again.
    #[error("another commit came first")]
    Conflict,
    /// Certainly not stored and the log is still sound: answer, keep serving.
    #[error("not stored: {0}")]
    NotStored(LogError),
    /// May or may not be stored, e.g. a lost answer: read `expected + 1` before anybody is answered.
    #[error("may or may not be stored: {0}")]
    Unclear(LogError),
    /// The log failed or diverged: no more writes until it was opened again.
    #[error("the log is closed: {0}")]
    Closed(LogError),
}

/// What is wrong with the log: the kind for everybody, the detail for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct LogError {
    /// The kind of error. Its text is fit for the public.
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

/// What can be wrong with a log. The texts tell no paths, hosts or system errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// The engine does not answer for now.
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
    Gone,
    /// The log is not the one this node has been following.
    #[error("the history in the log has changed")]
    Diverged,
    /// The log holds something that only a newer program understands.
    #[error("the log contains entries in a newer format")]
    NewerFormat,
    /// Another process holds the store, or it is not ours to open.
    #[error("the storage cannot be opened")]
    CannotOpen,
    /// The record is larger than the engine takes.
    #[error("the record is too large for the storage engine")]
    TooLarge,
    /// Our own bug: a part of the program ended unexpectedly, and only a restart brings it back.
    #[error("an internal component stopped")]
    Stopped,
}

/// What an engine promises about an acknowledged record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    /// The engine, by its URL scheme.
    pub engine: &'static str,
    /// How much of a catastrophe a record survives.
    pub level: DurabilityLevel,
    /// The same in one sentence.
    pub promise: String,
    /// What was looked up to know it: setting and value.
    pub facts: Vec<(String, String)>,
}

/// From nothing to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DurabilityLevel {
    /// Gone when the process ends.
    Volatile,
    /// Acknowledged before it is on disk: a power cut can take back the last moments.
    Buffered,
    /// On disk before it is acknowledged.
    Synced,
    /// On the disks of a majority of machines before it is acknowledged.
    Replicated,
}

/// Answers every read, from memory. Implementations lock inside; no call waits for I/O.
pub trait ReadModel: Send + Sync + 'static {
    /// Makes the commit visible, all of it at once. Commits come in order and each once.
    fn apply(&self, commit: &Commit);
    /// Forgets everything: the log is about to be replayed from the start.
    fn clear(&self);
    /// The pet with this id.
    fn get(&self, id: PetId) -> Option<Pet>;
    /// The page that the query asks for, in id order, together with the version it was taken from.
    fn list(&self, query: &ListPets) -> Page;
    /// The last commit that is visible.
    fn version(&self) -> Version;
    /// How many pets there are.
    fn count(&self) -> usize;
}

/// Tells the time. It may jump; the writer sees to it that commit times never go back.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> DateTime<Utc>;
}

/// Knows the API keys.
pub trait Authenticator: Send + Sync + 'static {
    /// Who presents this key, if it is valid now: known, not revoked, not expired. Takes the same time for
    /// every unknown key.
    fn authenticate(&self, key: &str) -> Result<Arc<Principal>, RefusedKey>;
}
