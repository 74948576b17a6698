//! Commits, and the types that identify a place in the history of a log.

use std::{fmt, sync::Arc};

use chrono::{DateTime, Utc};
use domain::PetEvent;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::log::digest::Digest;

/// One atomic batch of events from any number of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its position in the log.
    pub position: Position,
    /// Its identity across nodes and histories.
    pub id: CommitId,
    /// The head hash of the log before this commit: the SHA-256 of the previous record, or of nothing.
    pub previous: Digest,
    /// The node that wrote it.
    pub node: NodeId,
    /// The time on the clock of that node. It may be earlier than the time of the commit before.
    pub time: DateTime<Utc>,
    /// The events, in order.
    pub entries: Vec<Entry>,
}

/// The id of one run of one node: random, chosen at startup. Written as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// Chooses the id of this run.
    pub fn random() -> Self {
        // The second half of a UUIDv7 is random except for two bits.
        Self(Uuid::now_v7().as_u64_pair().1)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// The owner of an API key: the id of the first key that was issued to them, which rotation passes on to the next keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub Arc<str>);

impl fmt::Display for OwnerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// An event, and the request that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The event.
    pub event: PetEvent,
    /// The owner of the API key.
    pub by: OwnerId,
    /// The idempotency key, under which the request may be repeated.
    pub request_key: Option<RequestKey>,
}

/// An idempotency key: 1 to 255 visible ASCII characters, chosen by the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestKey(Arc<str>);

impl RequestKey {
    /// The maximum length of a key.
    pub const MAX_CHARS: usize = 255;

    /// Accepts 1 to 255 visible ASCII characters.
    pub fn new(key: impl Into<Arc<str>>) -> Result<Self, &'static str> {
        let key = key.into();
        let fits =
            (1..=Self::MAX_CHARS).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(key)) } else { Err("must be 1 to 255 visible ASCII characters") }
    }

    /// The key as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The number of a commit. 0 is the empty log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position(pub u64);

impl Position {
    /// Before the first commit.
    pub const START: Self = Self(0);
    /// The largest position that every engine can store.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// The position of the commit after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The position of the commit before this one. Before the start, there is only the start.
    #[must_use]
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The id of a commit, unique across nodes and histories: a time-ordered UUID (version 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommitId(pub Uuid);

impl CommitId {
    /// The time at which the id was created, on the clock of its node. `None` if the id is of another version.
    pub fn time(self) -> Option<DateTime<Utc>> {
        let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
        DateTime::from_timestamp(seconds.try_into().ok()?, nanoseconds)
    }
}

/// A version of a log: its last position, and the commit there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version {
    /// The last position.
    pub position: Position,
    /// The commit at that position, which distinguishes histories of the same length. `None` for the empty log.
    pub commit: Option<CommitId>,
}

impl Version {
    /// The empty log.
    pub const START: Self = Self { position: Position::START, commit: None };

    /// The log whose last commit is this one, at `position`.
    pub fn at(position: Position, commit: CommitId) -> Self {
        Self { position, commit: Some(commit) }
    }

    /// This log with one more commit.
    #[must_use]
    pub fn then(self, commit: CommitId) -> Self {
        Self::at(self.position.next(), commit)
    }
}

/// The identity of a log that a node has applied: its first commit, and the newest commit that it must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogIdentity {
    /// The first commit of the log.
    #[serde(rename = "first_commit")]
    pub first: CommitId,
    /// The position of the newest applied commit.
    pub position: Position,
    /// The newest applied commit.
    #[serde(rename = "commit")]
    pub newest: CommitId,
}

impl LogIdentity {
    /// The newest applied commit with its position.
    pub fn version(self) -> Version {
        Version::at(self.position, self.newest)
    }
}
