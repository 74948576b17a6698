//! Walking a whole log without serving it: the base of verify, export and every move between engines.

use std::fmt;

use chrono::{DateTime, Utc};
use domain::Inventory;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::{
    codec::Commit,
    follower,
    ports::{EventLog, Fault, LogError, Position, ReadBound, StoredRecord},
};

/// What a walk found, up to where it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The last sound position; also the number of commits, since positions have no gaps.
    pub last: Position,
    /// How many events the commits hold.
    pub events: u64,
    /// How many bytes the records take.
    pub bytes: u64,
    /// When the first and the last commit were made.
    pub span: Option<(DateTime<Utc>, DateTime<Utc>)>,
    /// SHA-256 over the bytes of all records in order: the same on every engine for the same history.
    pub digest: Digest,
}

/// A SHA-256 digest, shown in lower-case hex.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A walk that did not reach the end of the log.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Broken<E: std::error::Error> {
    /// Everything before the fault, which is sound.
    pub sound: Summary,
    /// What ended the walk.
    pub error: E,
}

/// Reads the whole log and hands each record on with what it says. Every record is checked: its checksum, its
/// version, its place, and that it does not contradict the ones before it. The first fault ends the walk.
pub async fn walk<E: std::error::Error + From<LogError>>(
    log: &dyn EventLog,
    mut visit: impl FnMut(&StoredRecord, &Commit) -> Result<(), E>,
) -> Result<Summary, Broken<E>> {
    let mut inventory = Inventory::default();
    let mut sound = Summary::default();
    let mut digest = Sha256::new();
    let ended = async {
        loop {
            let records = log.read(sound.last, ReadBound::BATCH).await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in &records {
                let commit = checked(record, sound.last, &mut inventory)?;
                visit(record, &commit)?;
                digest.update(&record.bytes);
                sound.last = record.position;
                sound.events += commit.entries.len() as u64;
                sound.bytes += record.bytes.len() as u64;
                sound.span = Some((sound.span.map_or(commit.time, |(first, _)| first), commit.time));
            }
        }
    }
    .await;
    sound.digest = Digest(digest.finalize().into());
    match ended {
        Ok(()) => Ok(sound),
        Err(error) => Err(Broken { sound, error }),
    }
}

/// What the record says, if it can follow `last` in a sound history.
fn checked(record: &StoredRecord, last: Position, inventory: &mut Inventory) -> Result<Commit, LogError> {
    let commit = follower::decode(record)?;
    let position = record.position;
    if position != last.next() {
        let detail = format!("after position {last} the log goes on with {position}: commits are missing");
        return Err(LogError::new(Fault::Damaged, detail));
    }
    for entry in &commit.entries {
        inventory.apply(&entry.event).map_err(|contradiction| {
            LogError::new(
                Fault::Damaged,
                format!("the commit at position {position} is not sound: {contradiction}"),
            )
        })?;
    }
    Ok(commit)
}
