//! How a node starts: from a snapshot if that is of any use, and otherwise from the beginning of the log.

use std::{sync::Arc, time::Instant};

use chrono::DateTime;
use tokio::task;

use super::{
    SnapshotStatus, Snapshots, Unusable,
    contents::{Head, Opened},
};
use crate::{
    codec,
    commit::{CommitId, Version},
    digest::Digest,
    ports::{EventLog, Fault, LogError, LogSource, Position, ReadBound, ReadModel},
    projection::Projection,
    replica::Replica,
};

/// What a node believes without having read it: the log up to this commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The first commit of the log.
    pub(crate) first: CommitId,
    pub(crate) version: Version,
    pub(crate) head_hash: Digest,
}

/// A replica that has caught up with the log, and what it has taken from a snapshot for that.
pub(crate) async fn start(
    log: Arc<dyn EventLog>,
    read_model: Arc<dyn ReadModel>,
    first: Option<CommitId>,
    snapshots: Option<&Snapshots>,
) -> Result<(Replica, Option<Restored>), LogError> {
    let empty = || Replica::new(log.clone(), Arc::new(Projection::new(read_model.clone(), first)));
    if let Some(snapshots) = snapshots {
        let (replica, begun) = (empty(), Instant::now());
        let restored = restore(&replica, snapshots, first).await;
        let caught_up = match restored {
            Ok(None) => Ok(None),
            Ok(Some(restored)) => replica.catch_up().await.map(|()| Some(restored)).map_err(Unusable::from),
            Err(unusable) => Err(unusable),
        };
        match caught_up {
            Ok(Some(restored)) => {
                tracing::info!(
                    "started from the snapshot at position {} in {:.3} s, and replayed the log up to position {}",
                    restored.version.position,
                    begun.elapsed().as_secs_f64(),
                    replica.projection.version().position
                );
                return Ok((replica, Some(restored)));
            }
            Ok(None) => {}
            Err(Unusable::Log(error)) if error.fault == Fault::Unreachable => return Err(error),
            Err(unusable) => {
                *snapshots.status.lock() = None;
                if let Unusable::Unreadable(error) = &unusable {
                    snapshots.note_reason(error);
                }
                tracing::warn!(
                    "the snapshot {} is not used, and the whole log is replayed instead: {unusable}{}",
                    snapshots.store.place(),
                    unusable.advice()
                );
            }
        }
    }
    let replica = empty();
    replica.catch_up().await?;
    Ok((replica, None))
}

/// Takes the state from the snapshot, if there is one and the log holds the commit that it was taken at.
async fn restore(
    replica: &Replica,
    snapshots: &Snapshots,
    first: Option<CommitId>,
) -> Result<Option<Restored>, Unusable> {
    let store = snapshots.store.clone();
    let opened = off_the_runtime(move || match store.open().map_err(Unusable::Unreadable)? {
        Some(file) => Opened::begin(file).map(Some),
        None => Ok(None),
    });
    let Some(opened) = opened.await? else { return Ok(None) };
    let position = opened.history.version.position;
    check_against_log(&opened.head, position, &*replica.log, first).await?;
    let (first, history) = (CommitId(opened.head.first), &opened.history);
    let restored = Restored { first, version: history.version, head_hash: history.head_hash };
    let taken = DateTime::from_timestamp(opened.head.taken, 0);
    let projection = replica.projection.clone();
    off_the_runtime(move || opened.load(&projection)).await?;
    *snapshots.status.lock() =
        taken.map(|taken| SnapshotStatus { position: restored.version.position, taken });
    Ok(Some(restored))
}

/// Makes sure that the log begins with the commit that the snapshot says, and holds the last one, byte for byte.
pub(super) async fn check_against_log(
    head: &Head,
    position: Position,
    log: &dyn LogSource,
    first: Option<CommitId>,
) -> Result<(), Unusable> {
    let another = |what: String| Unusable::AnotherHistory(what);
    let begins_with = CommitId(head.first);
    if first.is_some_and(|first| first != begins_with) {
        return Err(another("it is of another log".into()));
    }
    let found = log.read(Position(position.0.saturating_sub(1)), ReadBound::ONE).await?;
    let Some(last) = found.first() else {
        let is_empty = log.read(Position::START, ReadBound::ONE).await?.is_empty();
        return Err(if is_empty { Unusable::OfLostLog(position) } else { Unusable::Ahead(position) });
    };
    if Digest::of(&last.bytes).to_string() != head.record {
        return Err(another(format!("the log holds another commit at its position {position}")));
    }
    let found = log.read(Position::START, ReadBound::ONE).await?;
    match found.first().map(codec::decode_stored).transpose()? {
        Some(commit) if commit.id == begins_with => Ok(()),
        Some(_) | None => Err(another("the log begins with another commit".into())),
    }
}

/// Snapshots are in files, so not on a thread that others wait for.
async fn off_the_runtime<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, Unusable> {
    match task::spawn_blocking(read).await {
        Ok(outcome) => outcome,
        Err(panic) => Err(Unusable::Damaged(format!("reading it failed ({panic})"))),
    }
}
