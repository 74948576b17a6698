//! Reads around the gaps of a damaged log, and adds every readable commit to an empty log in a new history.

use std::ops::AsyncFnMut;

use uuid::Uuid;

use super::{Check, CopyError, Summary, copy::append};
use crate::{
    codec,
    commit::{Commit, CommitId, NodeId},
    ports::{EventLog, Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// From the first to the last position that cannot be read.
pub type Gap = (Position, Position);

/// What can be read of a log, and what cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remains {
    /// The last position that the log is known to have had.
    pub reach: Position,
    /// What cannot be read up to there, in order.
    pub gaps: Vec<Gap>,
    /// How many commits can be read.
    pub commits: u64,
    /// How many events they hold.
    pub events: u64,
}

/// Reads every record up to `reach` that is sound in itself, and hands it on.
pub async fn read_around_gaps<E: From<LogError>>(
    log: &dyn LogSource,
    reach: Position,
    mut visit: impl AsyncFnMut(Commit) -> Result<(), E>,
) -> Result<Remains, E> {
    let mut remains = Remains { reach, ..Remains::default() };
    let (mut after, mut bound) = (Position::START, ReadBound::BATCH);
    while after < reach {
        let records = match log.read(after, bound).await {
            Err(error) if !matches!(error.fault, Fault::Damaged | Fault::Foreign) => return Err(error.into()),
            // A record of the batch is damaged or foreign; those before it are sound.
            Err(_) if bound != ReadBound::ONE => {
                bound = ReadBound::ONE;
                continue;
            }
            Err(_) => vec![],
            Ok(records) => records,
        };
        if records.is_empty() {
            remains.misses(after.next());
            after = after.next();
        }
        for record in records {
            after = record.position;
            match codec::decode_stored(&record) {
                Ok(commit) => {
                    remains.commits += 1;
                    remains.events += commit.entries.len() as u64;
                    bound = ReadBound::BATCH;
                    visit(commit).await?;
                }
                Err(error) if error.fault == Fault::Damaged => remains.misses(record.position),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(remains)
}

/// Adds the events of every readable commit to `to`, which must be empty: the same pets, ids, times, owners and idempotency
/// keys, in commits of a new history.
pub async fn salvage_around_gaps(
    from: &dyn LogSource,
    reach: Position,
    to: &dyn EventLog,
    mut progress: impl FnMut(Position),
) -> Result<(Remains, Summary), CopyError> {
    if to.head().await.map_err(CopyError::Target)? != Position::START {
        return Err(CopyError::NotEmpty);
    }
    let mut check = Check::default();
    let node = NodeId::random();
    let remains = read_around_gaps::<CopyError>(from, reach, async |commit| {
        let read = commit.position;
        let before = check.history.version;
        let (position, previous) = (before.position.next(), check.history.head_hash);
        let added = Commit { position, id: CommitId(Uuid::now_v7()), previous, node, ..commit };
        let record = codec::encode(&added);
        let stored = StoredRecord { position, id: None, bytes: record.bytes.clone() };
        check.follows(&stored)?;
        append(to, before, &record).await?;
        check.take(&stored, &added);
        progress(read);
        Ok(())
    })
    .await?;
    Ok((remains, check.summary()))
}

impl Remains {
    /// Adds a position that cannot be read.
    fn misses(&mut self, position: Position) {
        match self.gaps.last_mut() {
            Some((_, last)) if last.next() == position => *last = position,
            Some(_) | None => self.gaps.push((position, position)),
        }
    }
}
