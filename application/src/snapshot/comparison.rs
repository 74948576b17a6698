//! Compares a snapshot with what a replay of the log gives, all of it.

use std::{
    io::{self, Write},
    sync::Arc,
};

use chrono::DateTime;
use sha2::{Digest as _, Sha256};
use tokio::task;

use super::{Frozen, Unusable, contents::Opened, restore::check_against_log};
use crate::{
    codec,
    commit::Version,
    digest::Digest,
    ports::{LogError, LogSource, Position, ReadBound, ReadModel, SnapshotStore},
    projection::Projection,
};

/// What a snapshot is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// There is none.
    Missing,
    /// No start would use it, for this reason.
    Unused(String),
    /// It is what a replay up to this position gives.
    Same(Position),
    /// A start would use it, and it is not what a replay up to this position gives.
    Different(Position),
}

/// Loads the snapshot into one empty read model, replays the log up to the same commit into another, and compares
/// everything that the two then hold.
pub async fn compare(
    log: &dyn LogSource,
    store: Arc<dyn SnapshotStore>,
    read_models: [Arc<dyn ReadModel>; 2],
) -> Result<Comparison, LogError> {
    let [of_snapshot, of_log] = read_models.map(|model| Arc::new(Projection::new(model, None)));
    match load(log, store, of_snapshot.clone()).await {
        Ok(None) => return Ok(Comparison::Missing),
        Ok(Some(())) => {}
        Err(Unusable::Log(error)) => return Err(error),
        Err(unusable) => return Ok(Comparison::Unused(unusable.to_string())),
    }
    let version = of_snapshot.version();
    replay(log, &of_log, version.position).await?;
    let compared = task::spawn_blocking(move || {
        let same = of_log.version() == version && digest(&of_snapshot)? == digest(&of_log)?;
        io::Result::Ok(if same {
            Comparison::Same(version.position)
        } else {
            Comparison::Different(version.position)
        })
    });
    match compared.await {
        Ok(Ok(comparison)) => Ok(comparison),
        Ok(Err(error)) => Ok(Comparison::Unused(error.to_string())),
        Err(panic) => Ok(Comparison::Unused(panic.to_string())),
    }
}

async fn load(
    log: &dyn LogSource,
    store: Arc<dyn SnapshotStore>,
    projection: Arc<Projection>,
) -> Result<Option<()>, Unusable> {
    let Some(file) = store.open().map_err(Unusable::Unreadable)? else { return Ok(None) };
    let opened = Opened::begin(file)?;
    check_against_log(&opened.head, opened.history.version.position, log, None).await?;
    let loaded = task::spawn_blocking(move || opened.load(&projection)).await;
    loaded.unwrap_or_else(|panic| Err(Unusable::Damaged(panic.to_string()))).map(Some)
}

async fn replay(log: &dyn LogSource, projection: &Projection, last: Position) -> Result<(), LogError> {
    loop {
        let Version { position, .. } = projection.version();
        let records = log.read(position, ReadBound::BATCH).await?;
        let rest = records.iter().take_while(|record| record.position <= last);
        for record in rest {
            projection.apply(&codec::decode_stored(record)?, &record.bytes)?;
        }
        if projection.version().position == position {
            return Ok(());
        }
    }
}

/// A digest over everything that a snapshot of this state would hold.
fn digest(projection: &Arc<Projection>) -> io::Result<Digest> {
    let mut hash = Hash(Sha256::new());
    Frozen::take(projection).write(&mut hash, Digest::default(), DateTime::UNIX_EPOCH)?;
    Ok(Digest(hash.0.finalize().into()))
}

struct Hash(Sha256);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
