//! The history of a log, and the rules for its next commit. Replay, `log verify` and `log copy` use these rules.

use domain::Inventory;

use crate::{
    log::{
        commit::{Commit, Version},
        digest::Digest,
    },
    ports::{Fault, LogError, Position},
};

/// A history, up to the last commit that was added.
#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The last commit.
    pub(crate) version: Version,
    pub(crate) inventory: Inventory,
    /// The head hash: the SHA-256 of the last record, or of the empty string. It identifies the whole history, and the
    /// next commit contains it.
    pub(crate) head_hash: Digest,
}

impl Default for History {
    fn default() -> Self {
        Self { version: Version::default(), inventory: Inventory::default(), head_hash: Digest::of(b"") }
    }
}

/// The error for a commit that does not continue the hash chain.
pub(crate) fn broken_chain(position: Position) -> LogError {
    Fault::Damaged.error(format!(
        "the commit at position {position} does not match the hash of the commit before it: part of the log was replaced"
    ))
}

impl History {
    /// The history that ends with this commit, whose record has this hash. The earlier commits are
    /// not needed: the commit contains the hash of the record before it, which identifies all of them.
    pub(crate) fn after(commit: &Commit, record_hash: Digest) -> Result<Self, LogError> {
        let version = Version { position: commit.position.before(), commit: None };
        let mut history = Self { version, head_hash: commit.previous, ..Self::default() };
        history.add(commit, record_hash)?;
        Ok(history)
    }

    /// Adds the next commit, whose record has this hash. Changes nothing if commits are missing before it, or if it
    /// contradicts the history.
    pub(crate) fn add(&mut self, commit: &Commit, record_hash: Digest) -> Result<(), LogError> {
        let (last, position) = (self.version.position, commit.position);
        if position != last.next() {
            return Err(Fault::Damaged.error(format!(
                "position {last} is followed by {position} instead of {}: commits are missing or out of order",
                last.next()
            )));
        }
        if commit.previous != self.head_hash {
            return Err(broken_chain(position));
        }
        let mut inventory = self.inventory.clone();
        for entry in &commit.entries {
            inventory.apply(&entry.event).map_err(|contradiction| {
                Fault::Damaged.error(format!("the commit at position {position} is invalid: {contradiction}"))
            })?;
        }
        self.inventory = inventory;
        self.version = Version::at(position, commit.id);
        self.head_hash = record_hash;
        Ok(())
    }
}
