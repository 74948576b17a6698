//! Whole histories: checking one, copying one to another engine, writing one to a file and reading it back.
//!
//! The digest over the stored bytes proves that two logs are the same, whatever engine stores them.

mod copy;
mod export;
mod feed;
mod manifest;
mod salvage;

use std::ops::AsyncFnMut;

use chrono::{DateTime, Utc};
use sha2::Sha256;
use thiserror::Error;

pub use copy::{CopyError, CopyStep, Until, copy};
pub use export::{ExportError, LINE_MAX, check_export, export, import};
pub use feed::Feed;
pub use manifest::Passed;
pub use salvage::{Gap, Remains, read_around_gaps, salvage_around_gaps};

use crate::{
    codec,
    commit::Commit,
    digest::Digest,
    history::History,
    ports::{Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
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
    /// How many bytes the largest of them takes.
    pub largest: usize,
    /// When the first and the last commit were made.
    pub span: Option<(DateTime<Utc>, DateTime<Utc>)>,
    /// SHA-256 over the bytes of all records in order: the same on every engine for the same history.
    pub digest: Digest,
    /// The head hash: identifies the whole history by its last record. The next record will carry it.
    pub head_hash: Digest,
}

/// A walk that did not reach the end of the history.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Broken<E: std::error::Error> {
    /// Everything before the fault, which is sound.
    pub sound: Box<Summary>,
    /// What ended the walk.
    pub error: E,
}

/// Reads the whole log and hands each record on with what it says. Every record is checked: its checksum, its
/// version, its place, and that it does not contradict the ones before it. The first fault ends the walk.
pub async fn walk<E: std::error::Error + From<LogError>>(
    log: &dyn LogSource,
    mut visit: impl AsyncFnMut(&StoredRecord, &Commit) -> Result<(), E>,
) -> Result<Summary, Broken<E>> {
    walk_with_history(log, async |record, commit, _| visit(record, commit).await).await
}

/// Reads the whole log like [`walk`], and finds the last position at which `head_hash` was the head hash.
pub async fn find_head_hash(
    log: &dyn LogSource,
    head_hash: Digest,
    mut progress: impl FnMut(Position),
) -> Result<(Summary, Option<Position>), Broken<LogError>> {
    let mut found = (head_hash == History::default().head_hash).then_some(Position::START);
    let summary = walk_with_history(log, async |record, _, history| {
        progress(record.position);
        if history.head_hash == head_hash {
            found = Some(record.position);
        }
        Ok(())
    })
    .await?;
    Ok((summary, found))
}

async fn walk_with_history<E: std::error::Error + From<LogError>>(
    log: &dyn LogSource,
    mut visit: impl AsyncFnMut(&StoredRecord, &Commit, &History) -> Result<(), E>,
) -> Result<Summary, Broken<E>> {
    let mut check = Check::default();
    let ended = check.walk(log, async |record, commit, history| visit(record, commit, history).await).await;
    check.end(ended)
}

/// Makes sure that what was read next continues what was read before: the log may have been restored, or taken over by
/// a server with another history, and the two must not be mixed.
async fn still_holds(log: &dyn LogSource, last: &StoredRecord) -> Result<(), LogError> {
    let before = Position(last.position.0 - 1);
    // The last record may be that of a copy, on an engine that stores ids where this one does not.
    if log.read(before, ReadBound::ONE).await?.first().is_some_and(|found| found.bytes == last.bytes) {
        return Ok(());
    }
    let detail = format!(
        "the log no longer holds the commit that was read at position {}: it was replaced meanwhile; start again",
        last.position
    );
    Err(LogError::new(Fault::Diverged, detail))
}

/// Checks a history record by record, and sums it up.
#[derive(Default)]
struct Check {
    history: History,
    sound: Summary,
    digest: Sha256,
    /// The last record that was taken.
    last: Option<StoredRecord>,
}

impl Check {
    /// Continues after this record, which stands for everything before it. The totals count what is taken from now on.
    fn after(last: &StoredRecord) -> Result<Self, LogError> {
        let history = History::after(&codec::decode_stored(last)?, &last.bytes)?;
        let sound = Summary { last: last.position, ..Summary::default() };
        Ok(Self { history, sound, digest: Sha256::default(), last: Some(last.clone()) })
    }

    /// Takes everything that the log holds after what was taken so far.
    async fn walk<E: From<LogError>>(
        &mut self,
        log: &dyn LogSource,
        mut visit: impl AsyncFnMut(&StoredRecord, &Commit, &History) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let records = self.next_records(log).await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in &records {
                let commit = self.follows(record)?;
                visit(record, &commit, &self.history).await?;
                self.take(record, &commit);
            }
        }
    }

    /// Reads the records after those that were taken. Empty: nothing more for now.
    async fn next_records(&self, log: &dyn LogSource) -> Result<Vec<StoredRecord>, LogError> {
        let records = match log.read(self.sound.last, ReadBound::BATCH).await {
            // A record of the batch is damaged; those before it are not.
            Err(error) if error.fault == Fault::Damaged => log.read(self.sound.last, ReadBound::ONE).await?,
            records => records?,
        };
        if let (Some(last), false) = (&self.last, records.is_empty()) {
            still_holds(log, last).await?;
        }
        Ok(records)
    }

    /// The commit in the record, if it fits the ones taken so far.
    fn follows(&mut self, record: &StoredRecord) -> Result<Commit, LogError> {
        let commit = codec::decode_stored(record)?;
        self.history.add(&commit, &record.bytes)?;
        Ok(commit)
    }

    fn take(&mut self, record: &StoredRecord, commit: &Commit) {
        sha2::Digest::update(&mut self.digest, &record.bytes);
        let sound = &mut self.sound;
        sound.last = record.position;
        sound.events += commit.entries.len() as u64;
        sound.bytes += record.bytes.len() as u64;
        sound.largest = sound.largest.max(record.bytes.len());
        sound.span = Some((sound.span.map_or(commit.time, |(first, _)| first), commit.time));
        self.last = Some(record.clone());
    }

    fn summary(&self) -> Summary {
        let digest = Digest(sha2::Digest::finalize(self.digest.clone()).into());
        Summary { digest, head_hash: self.history.head_hash, ..self.sound.clone() }
    }

    fn end<E: std::error::Error>(self, ended: Result<(), E>) -> Result<Summary, Broken<E>> {
        match ended {
            Ok(()) => Ok(self.summary()),
            Err(error) => Err(Broken { sound: Box::new(self.summary()), error }),
        }
    }
}
