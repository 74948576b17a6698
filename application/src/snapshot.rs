//! Snapshots: the state of a node at one commit, written beside the log so that a start need not replay all of it.
//!
//! A snapshot is a cache. It is used only if it is whole, of this format, and of a commit that the log holds; without one a
//! start takes longer, and nothing else is different. What it spares a start is made up for afterwards: the log is
//! read and compared in the background (`log_check`).
//!
//! Reading order: `contents` (what is in it), `frame` (how a damaged one is recognised), `restore` (how a node starts from
//! it), `saver` (when it is written), `comparison` (whether it is what a replay gives).

mod comparison;
mod contents;
mod frame;
mod restore;
mod saver;

use std::{fmt, io, sync::Arc};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use thiserror::Error;

pub use comparison::{Comparison, compare};
pub(crate) use contents::Frozen;
pub(crate) use restore::{Restored, start};
pub(crate) use saver::Saver;

use crate::ports::{LogError, Position, SnapshotStore};

/// Where snapshots are kept, and how often one is written.
#[derive(Clone)]
pub struct Snapshots {
    store: Arc<dyn SnapshotStore>,
    /// A snapshot is written whenever so many commits were applied since the last one.
    every: u64,
    status: Arc<Mutex<Option<SnapshotStatus>>>,
    /// Why the last one could not be read or written. Each reason is reported once.
    reported: Arc<Mutex<Option<String>>>,
    /// Held while a snapshot is written or removed.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The snapshot that the next start finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// The last commit in it.
    pub position: Position,
    /// When it was taken.
    pub taken: DateTime<Utc>,
}

impl Snapshots {
    /// Keeps snapshots there, and writes one after every so many commits.
    pub fn new(store: Arc<dyn SnapshotStore>, every: u64) -> Self {
        Self {
            store,
            every: every.max(1),
            status: Arc::default(),
            reported: Arc::default(),
            turn: Arc::default(),
        }
    }

    pub(crate) fn status(&self) -> Option<SnapshotStatus> {
        *self.status.lock()
    }

    /// Removes the snapshot, so that the next start reads the whole log. Waits for one that is being written.
    pub(crate) async fn drop_all(&self) {
        let _turn = self.turn.lock().await;
        *self.status.lock() = None;
        let store = self.store.clone();
        let removed = tokio::task::spawn_blocking(move || store.remove()).await;
        if let Ok(Err(error)) = removed {
            let place = self.store.place();
            tracing::error!(
                "the snapshot {place} cannot be removed: {error}; delete it before the next start"
            );
        }
    }

    /// Remembers why a snapshot could not be read or written, and tells whether that is another reason than before.
    fn note_reason(&self, error: &io::Error) -> bool {
        let reason = error.to_string();
        self.reported.lock().replace(reason.clone()) != Some(reason)
    }
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Snapshots").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Why a snapshot is not used.
#[derive(Debug, Error)]
pub(crate) enum Unusable {
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("{0}")]
    Damaged(String),
    #[error("its format is version {0}, and this program writes version {version}", version = frame::VERSION)]
    OtherFormat(u32),
    #[error("{0}")]
    AnotherHistory(String),
    #[error("it ends at position {0}, and the log is empty")]
    OfLostLog(Position),
    #[error("it ends at position {0}, which the log does not reach")]
    Ahead(Position),
    /// The log that it belongs to could not be asked.
    #[error("{0}")]
    Log(#[from] LogError),
}

impl Unusable {
    /// What an operator should do about it.
    fn advice(&self) -> &'static str {
        match self {
            Self::Unreadable(error) => match error.kind() {
                io::ErrorKind::IsADirectory => "; delete it: until then no snapshot is written",
                io::ErrorKind::PermissionDenied => "; give this user the right to read it, or delete it",
                _ => "; the next snapshot replaces it",
            },
            Self::Damaged(_) | Self::OtherFormat(_) => {
                "; nothing has to be done: the next snapshot replaces it"
            }
            Self::AnotherHistory(_) => {
                "; unless the log was replaced on purpose, stop the service and check which log it opens"
            }
            Self::OfLostLog(_) | Self::Ahead(_) => {
                "; acknowledged commits are missing from the log: unless it was emptied or restored from an older backup on \
                 purpose, stop the service and restore the log from a backup"
            }
            // It says so itself.
            Self::Log(_) => "",
        }
    }
}
