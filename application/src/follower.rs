//! How the log gets into a node: replay at the start, catching up before a decision is made again.

use crate::{
    codec,
    ports::{EventLog, Fault, LogError, Position, ReadBound, StoredRecord},
    projection::Projection,
};

/// Applies everything the log has beyond what was applied so far.
pub(crate) async fn catch_up(log: &dyn EventLog, projection: &Projection) -> Result<(), LogError> {
    loop {
        let records = log.read(projection.version().position, ReadBound::BATCH).await?;
        if records.is_empty() {
            return Ok(());
        }
        for record in &records {
            projection.apply(&decode(record)?)?;
        }
        // A long replay must not keep other tasks of this worker waiting.
        tokio::task::yield_now().await;
    }
}

/// Catches up after the log was out of sight. If it is no longer the log that was read before, everything is
/// dropped and replayed: events that no longer exist must not be served.
pub(crate) async fn rejoin(log: &dyn EventLog, projection: &Projection) -> Result<(), LogError> {
    if let Err(diverged) = same_history(log, projection).await? {
        tracing::warn!("replaying from the start: {diverged}");
        projection.reset();
    }
    catch_up(log, projection).await
}

/// Whether the log still holds, at the last applied position, the commit that was applied.
async fn same_history(log: &dyn EventLog, projection: &Projection) -> Result<Result<(), LogError>, LogError> {
    let version = projection.version();
    let Some(applied) = version.commit else { return Ok(Ok(())) };
    let before = Position(version.position.0 - 1);
    let diverged = |what: &str| {
        LogError::new(Fault::Diverged, format!("the log {what} at position {}", version.position))
    };
    match log.read(before, ReadBound::ONE).await?.first() {
        None => Ok(Err(diverged("no longer holds a commit"))),
        Some(record) if decode(record)?.id == applied => Ok(Ok(())),
        Some(_) => Ok(Err(diverged("holds another commit"))),
    }
}

/// Reads a stored record and checks that it stands where it says.
pub(crate) fn decode(record: &StoredRecord) -> Result<codec::Commit, LogError> {
    let commit = codec::decode(&record.bytes).map_err(|error| error.at(record.position))?;
    if commit.position == record.position {
        return Ok(commit);
    }
    let detail =
        format!("position {} holds the commit that was written at {}", record.position, commit.position);
    Err(LogError::new(Fault::Damaged, detail))
}
