//! Salvages every readable commit of a damaged log into a new history.

use std::ops::AsyncFnMut;

use uuid::Uuid;

use super::{CopyError, Tally, batch::Batch, copy::CopyTarget, intact::IntactRecords};
use crate::{
    log::{
        codec,
        commit::{Commit, CommitId, NodeId},
        digest::Digest,
        history,
    },
    ports::{EventLog, LogError, LogSource, Position, Record, StoredRecord},
};

/// Reads every intact record up to `last`, and passes its commit to `visit`. Returns the first and the last position
/// of each gap, in order. Fails where the hash chain breaks without a gap: it is unknown which side was replaced.
pub async fn read_around_gaps<E: From<LogError>>(
    log: &dyn LogSource,
    last: Position,
    mut visit: impl AsyncFnMut(Commit) -> Result<(), E>,
) -> Result<Vec<(Position, Position)>, E> {
    let mut gaps = Vec::new();
    let (mut next, mut head_hash) = (Position::START.next(), Digest::of(b""));
    let mut records = IntactRecords::of(log, last);
    while let Some((record, commit)) = records.next().await? {
        let position = commit.position;
        if position > next {
            gaps.push((next, position.before()));
        } else if commit.previous != head_hash {
            return Err(history::broken_chain(position).into());
        }
        (next, head_hash) = (position.next(), Digest::of(&record.bytes));
        visit(commit).await?;
    }
    if next <= last {
        gaps.push((next, last));
    }
    Ok(gaps)
}

/// Adds the events of every readable commit to `to`, which must be empty: the same pets, ids, times, owners and
/// idempotency keys, in commits of a new history. Returns the gaps and the tally of the new history. Until the last
/// commit is added, the history ends with [`NodeId::UNFINISHED_SALVAGE`], and nodes reject it.
pub async fn salvage_around_gaps(
    from: &dyn LogSource,
    last: Position,
    to: &dyn EventLog,
    mut progress: impl FnMut(Position),
) -> Result<(Vec<(Position, Position)>, Tally), CopyError> {
    if to.head().await.map_err(CopyError::Target)? != Position::START {
        return Err(CopyError::NotEmpty);
    }
    let mut target = CopyTarget::open(to).await?;
    let mut batch = Batch::at(Position::START.next());
    let mut added = Tally::default();
    // The last commit is not known before the next one is read.
    let mut pending: Option<Commit> = None;
    let gaps = read_around_gaps::<CopyError>(from, last, async |commit| {
        progress(commit.position);
        match pending.replace(commit) {
            Some(commit) => batch.push(next(&mut added, commit, NodeId::UNFINISHED_SALVAGE)?),
            None => return Ok(()),
        }
        if batch.is_full() { target.store_all(&mut batch).await } else { Ok(()) }
    })
    .await?;
    if let Some(commit) = pending {
        batch.push(next(&mut added, commit, NodeId::random())?);
    }
    target.store_all(&mut batch).await?;
    Ok((gaps, added))
}

/// Adds the events of a commit to the new history, and returns its record.
fn next(added: &mut Tally, commit: Commit, node: NodeId) -> Result<Record, CopyError> {
    let (position, previous) = (added.position().next(), added.history.head_hash);
    let commit = Commit { position, id: CommitId(Uuid::now_v7()), previous, node, ..commit };
    let record = codec::encode(&commit);
    let stored = StoredRecord { position, id: Some(record.id), bytes: record.bytes.clone() };
    added.check_next(&stored)?;
    added.add_commit(stored, &commit);
    Ok(record)
}
