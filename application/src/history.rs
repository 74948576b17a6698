//! The history of a log, and the rules that the next commit has to meet. Replay, `log verify` and `log copy`
//! all use these rules.

use chrono::{DateTime, Utc};
use domain::Inventory;
use sha2::{Digest as _, Sha256};

use crate::{
    commit::{Commit, CommitView, EventView, Format, Version},
    digest::Digest,
    log_clock::LogClock,
    ports::{Fault, LogError},
};

/// A history, up to the last commit that was added.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The last commit.
    pub(crate) version: Version,
    /// Which ids are taken.
    pub(crate) inventory: Inventory,
    /// What time it is, as far as the commits tell.
    pub(crate) clock: LogClock,
    chain: Chain,
}

/// What the next commit of version 2 has to name.
#[derive(Debug, Clone)]
enum Chain {
    /// All records so far are of version 1: the digest over all of them.
    Unchained(Sha256),
    /// The digest of the last record, which is of version 2.
    Chained(Digest),
}

/// The stored bytes of a commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub(crate) bytes: &'a [u8],
    /// Their digest, if somebody had the time to compute it.
    pub(crate) digest: Option<Digest>,
}

impl Stored<'_> {
    fn digest(self) -> Digest {
        self.digest.unwrap_or_else(|| Digest::of(self.bytes))
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::Unchained(Sha256::new())
    }
}

impl History {
    /// The head hash, which names the whole history: the digest of the last record if that is of version 2, and of all
    /// records otherwise.
    pub(crate) fn head_hash(&self) -> Digest {
        match &self.chain {
            Chain::Unchained(records) => Digest(records.clone().finalize().into()),
            Chain::Chained(last) => *last,
        }
    }

    /// Whether the last record is of version 2, so that no older one may follow.
    pub(crate) fn is_chained(&self) -> bool {
        matches!(self.chain, Chain::Chained(_))
    }

    /// Adds the next commit like [`add_view`](Self::add_view).
    pub(crate) fn add(&mut self, commit: &Commit, bytes: &[u8]) -> Result<DateTime<Utc>, LogError> {
        self.add_view(&commit.view(), Stored { bytes, digest: None })
    }

    /// Adds the next commit, whole, and returns the time of the log after it. Changes nothing if commits are missing
    /// before it, or if it contradicts the history.
    pub(crate) fn add_view(
        &mut self,
        commit: &CommitView<'_>,
        stored: Stored<'_>,
    ) -> Result<DateTime<Utc>, LogError> {
        let (last, position) = (self.version.position, commit.position);
        if position != last.next() {
            let detail = format!("position {last} is followed by {position}: commits are missing");
            return Err(LogError::new(Fault::Damaged, detail));
        }
        self.check_chain(commit)?;
        let mut inventory = self.inventory.clone();
        for entry in &commit.entries {
            let applied = match entry.event {
                EventView::Added(pet) => inventory.add(pet.id),
            };
            applied.map_err(|contradiction| {
                let detail = format!("the commit at position {position} is invalid: {contradiction}");
                LogError::new(Fault::Damaged, detail)
            })?;
        }
        self.inventory = inventory;
        self.version = Version::at(position, commit.id);
        match (commit.format, &mut self.chain) {
            (Format::V1, Chain::Unchained(records)) => records.update(stored.bytes),
            (Format::V1 | Format::V2 { .. }, chain) => *chain = Chain::Chained(stored.digest()),
        }
        Ok(self.clock.advance(position, commit.format.node(), commit.time))
    }

    fn check_chain(&self, commit: &CommitView<'_>) -> Result<(), LogError> {
        let what = match commit.format {
            Format::V1 if self.is_chained() => "is of format version 1, and the one before it of version 2",
            Format::V2 { previous, .. } if previous != self.head_hash() => {
                "does not follow the commits before it: it was written after different ones"
            }
            Format::V1 | Format::V2 { .. } => return Ok(()),
        };
        Err(LogError::new(Fault::Damaged, format!("the commit at position {} {what}", commit.position)))
    }
}
