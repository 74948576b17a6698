//! A commit, and what identifies its place in the history of a log.

use std::fmt;

use chrono::{DateTime, Utc};
use domain::PetEvent;
use uuid::Uuid;

use crate::{digest::Digest, idempotency::RequestKey, page::PetView, principal::KeyId};

/// One atomic batch of events from any number of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The version of the format it is written in, and what belongs to that version alone.
    pub format: Format,
    /// Where it stands in the log.
    pub position: Position,
    /// Its identity across nodes and histories.
    pub id: CommitId,
    /// What the clock of its writer said. In version 1 never before the commit that precedes it.
    pub time: DateTime<Utc>,
    /// What happened, in order.
    pub entries: Vec<Entry>,
}

impl Commit {
    /// The same, borrowed.
    pub fn view(&self) -> CommitView<'_> {
        let Self { format, position, id, time, ref entries } = *self;
        CommitView { format, position, id, time, entries: entries.iter().map(EntryView::from).collect() }
    }
}

/// A [`Commit`] whose texts are borrowed, from it or from the bytes of a record: to apply a commit, nothing of it has to be
/// copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitView<'a> {
    /// The version of the format it is written in, and what belongs to that version alone.
    pub format: Format,
    /// Where it stands in the log.
    pub position: Position,
    /// Its identity across nodes and histories.
    pub id: CommitId,
    /// What the clock of its writer said.
    pub time: DateTime<Utc>,
    /// What happened, in order.
    pub entries: Vec<EntryView<'a>>,
}

/// An [`Entry`] whose texts are borrowed. They keep the same rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryView<'a> {
    /// What happened.
    pub event: EventView<'a>,
    /// The owner of the API key that asked.
    pub by: &'a str,
    /// The key under which the request may be repeated.
    pub request_key: Option<&'a str>,
}

/// A [`PetEvent`] whose texts are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventView<'a> {
    /// A pet was added to the inventory.
    Added(PetView<'a>),
}

impl<'a> From<&'a Entry> for EntryView<'a> {
    fn from(entry: &'a Entry) -> Self {
        let event = match &entry.event {
            PetEvent::Added(pet) => EventView::Added(pet.into()),
        };
        let request_key = entry.request_key.as_ref().map(RequestKey::as_str);
        Self { event, by: &entry.by.0, request_key }
    }
}

/// The version of the format that a commit is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Version 1: nothing but a checksum tells that a record is what was written.
    V1,
    /// Version 2: each record names the history before it.
    V2 {
        /// The head hash of the log before this commit: the SHA-256 of the record before, and of all records before if
        /// that one is of version 1 or there is none.
        previous: Digest,
        /// The node that wrote the commit.
        node: NodeId,
    },
}

impl Format {
    /// The node that wrote the commit, if the version tells.
    pub fn node(self) -> Option<NodeId> {
        match self {
            Self::V1 => None,
            Self::V2 { node, .. } => Some(node),
        }
    }
}

/// One run of one node: chosen at random when the node starts. Written as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The id of a node that starts now.
    pub fn random() -> Self {
        // The second half of such an id is random but for two bits.
        Self(Uuid::now_v7().as_u64_pair().1)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// An event and who asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub event: PetEvent,
    /// The owner of the API key that asked.
    pub by: KeyId,
    /// The key under which the request may be repeated.
    pub request_key: Option<RequestKey>,
}

/// The number of a commit. 0 stands for the empty log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Before the first commit.
    pub const START: Self = Self(0);

    /// The position of the commit after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Tells commits apart across nodes and histories: a time-ordered UUID (version 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommitId(pub Uuid);

/// A moment in the history of one log: how far it reaches, and which commit it ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version {
    /// How many commits there are.
    pub position: Position,
    /// The last of them. Tells two histories of the same length apart; `None` before the first.
    pub commit: Option<CommitId>,
}

impl Version {
    /// The empty log.
    pub const START: Self = Self { position: Position::START, commit: None };

    /// The log whose last commit is this one, at `position`.
    pub fn at(position: Position, commit: CommitId) -> Self {
        Self { position, commit: Some(commit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_of_version_2_names_its_node_and_is_shown_by_its_position() {
        let node = NodeId(7);
        assert_eq!(Format::V2 { previous: Digest::of(b""), node }.node(), Some(node));
        assert_eq!(Format::V1.node(), None);
        assert_eq!(Position(42).next().to_string(), "43");
    }
}
