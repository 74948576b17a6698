//! How the log gets into a node: replay at the start, catching up before a decision is made again, and
//! following a log that other nodes write to. Written once for every engine.

use std::{
    cmp,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{self, Instant},
};

use crate::{
    bookmark::{self, Bookmark},
    codec,
    commit::Format,
    digest::Digest,
    health::Monitor,
    ports::{EventLog, Fault, LogError, Position, ReadBound, StoredRecord, Version},
    projection::Projection,
};

/// How long to wait for news before looking whether the log is still in sight.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// How long to wait for a commit that was stored and is not shown yet.
const LAG_PAUSE: Duration = Duration::from_millis(20);
/// How long a node may go without a confirmed head before it calls itself not ready.
const BLIND_MAX: Duration = Duration::from_secs(5);

/// Brings commits from the log into the projection.
#[derive(Clone)]
pub(crate) struct Replica {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) projection: Arc<Projection>,
    pub(crate) monitor: Arc<Monitor>,
    /// Held from reading to applying: nothing that was read before a reset is applied after it.
    turn: Arc<Mutex<()>>,
    /// Whether the log has answered ever since it was last compared with what was applied.
    in_sight: Arc<AtomicBool>,
}

impl Replica {
    pub(crate) fn new(log: Arc<dyn EventLog>, projection: Arc<Projection>) -> Self {
        let in_sight = Arc::new(AtomicBool::new(true));
        Self { log, projection, monitor: Arc::default(), turn: Arc::default(), in_sight }
    }

    /// Applies everything that the log holds by now.
    pub(crate) async fn catch_up(&self) -> Result<(), LogError> {
        let head = self.log.head().await?;
        let _turn = self.turn.lock().await;
        self.read_up_to(head).await
    }

    /// Applies what another node wrote right after `base`, or the first part of it. One read, since every moment
    /// spent here is a chance for the others to be faster again.
    pub(crate) async fn overtaken(&self, base: Version) -> Result<(), LogError> {
        let news = {
            let _turn = self.turn.lock().await;
            self.read_on().await?
        };
        if !news && self.projection.version() == base {
            // It was stored and is not shown yet.
            time::sleep(LAG_PAUSE).await;
        }
        Ok(())
    }

    /// Makes sure, before anything is appended, that the log is still the one that was read, if it was out of
    /// sight in between.
    pub(crate) async fn compare(&self) -> Result<(), LogError> {
        if self.in_sight.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.divergence(self.projection.version()).await?.map_or(Ok(()), Err)
    }

    /// Catches up after the log was out of sight. If it is no longer the log that was read before, everything
    /// is dropped and replayed, and nothing is read meanwhile: events that no longer exist must not be served.
    pub(crate) async fn rejoin(&self) -> Result<(), LogError> {
        // A log that failed says here whether it was opened again.
        let head = self.log.head().await?;
        let _turn = self.turn.lock().await;
        if let Some(diverged) = self.divergence(self.projection.version()).await? {
            self.monitor.reads_stopped(&diverged);
            self.projection.reset();
        }
        self.read_up_to(head).await?;
        self.in_sight.store(true, Ordering::Relaxed);
        self.monitor.reads_go_on();
        Ok(())
    }

    /// Whether the history that was applied holds this commit. The log is read if that is too long ago; a record of
    /// version 1 there is taken for the right one, because its hash depends on all records before it.
    pub(crate) async fn holds(&self, bookmark: Bookmark) -> bool {
        if let Some(held) = self.projection.holds(bookmark) {
            return held;
        }
        let Ok(found) = self.log.read(before(bookmark.position), ReadBound::ONE).await else { return false };
        found.first().is_some_and(|record| {
            codec::decode_stored(record).is_ok_and(|commit| match commit.format {
                Format::V1 => true,
                Format::V2 { .. } => bookmark.hash == Some(bookmark::prefix(Digest::of(&record.bytes))),
            })
        })
    }

    /// Keeps up with a log that others write to, for as long as it is polled.
    pub(crate) async fn follow(self) {
        let mut confirmed = Instant::now();
        loop {
            let news =
                if self.in_sight.load(Ordering::Relaxed) { self.news().await } else { self.rejoin().await };
            match news {
                Ok(()) => {
                    confirmed = Instant::now();
                    self.monitor.in_sight();
                }
                Err(error) => {
                    self.in_sight.store(false, Ordering::Relaxed);
                    if error.fault != Fault::Unreachable || confirmed.elapsed() > BLIND_MAX {
                        self.monitor.out_of_sight(&error);
                    }
                    time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn news(&self) -> Result<(), LogError> {
        let known = self.projection.version().position;
        self.log.wait_beyond(known, PATIENCE).await?;
        if self.projection.version().position > known {
            // It was this node that wrote: if others did too, the next wait ends at once.
            return Ok(());
        }
        let head = self.log.head().await?;
        let version = self.projection.version();
        match head.cmp(&version.position) {
            cmp::Ordering::Greater => {
                let _turn = self.turn.lock().await;
                self.read_on().await.map(|_| ())
            }
            // Nothing new, late news of the head, or a log that was replaced by another one, not longer than this.
            cmp::Ordering::Equal | cmp::Ordering::Less => self.divergence(version).await?.map_or(Ok(()), Err),
        }
    }

    /// Up to there and no further than needed: others may write faster than this node reads the last of it.
    async fn read_up_to(&self, head: Position) -> Result<(), LogError> {
        while self.projection.version().position < head {
            if !self.read_on().await? {
                return Err(not_shown(head));
            }
        }
        Ok(())
    }

    /// Reads and applies the next commits, and tells whether there were any.
    async fn read_on(&self) -> Result<bool, LogError> {
        let version = self.projection.version();
        let records = match version.commit {
            None => self.log.read(Position::START, ReadBound::BATCH).await?,
            Some(_) => self.read_after(version).await?,
        };
        for record in &records {
            self.projection.apply(&codec::decode_stored(record)?, &record.bytes)?;
        }
        // A long replay must not keep other tasks of this worker waiting.
        tokio::task::yield_now().await;
        Ok(!records.is_empty())
    }

    /// The next records, read along with the last one that was applied: an engine may be restored from a backup
    /// behind our back, and what it holds then does not continue our history.
    async fn read_after(&self, version: Version) -> Result<Vec<StoredRecord>, LogError> {
        let mut records = self.log.read(before(version.position), ReadBound::BATCH).await?;
        if let Some(diverged) = self.difference(version, records.first()).await? {
            return Err(diverged);
        }
        let news = records.split_off(1);
        if !news.is_empty() {
            return Ok(news);
        }
        // One record is all that an engine owes, so there may be more.
        let news = self.log.read(version.position, ReadBound::BATCH).await?;
        if !news.is_empty()
            && let Some(diverged) = self.divergence(version).await?
        {
            return Err(diverged);
        }
        Ok(news)
    }

    /// How the log differs from what was applied, at the version that was applied last.
    pub(crate) async fn divergence(&self, version: Version) -> Result<Option<LogError>, LogError> {
        if version.commit.is_none() {
            return Ok(None);
        }
        let found = self.log.read(before(version.position), ReadBound::ONE).await?;
        self.difference(version, found.first()).await
    }

    async fn difference(
        &self,
        version: Version,
        found: Option<&StoredRecord>,
    ) -> Result<Option<LogError>, LogError> {
        let (Version { position, .. }, Some(applied)) = (version, version.commit) else { return Ok(None) };
        let what = match found.map(codec::decode_stored).transpose()? {
            Some(commit) if commit.id == applied => return Ok(None),
            Some(_) => "holds another commit",
            None if self.log.head().await? >= position => return Err(not_shown(position)),
            None => "no longer holds a commit",
        };
        let detail = format!("the log {what} at position {position}: replaying it from the start");
        Ok(Some(LogError::new(Fault::Diverged, detail)))
    }
}

/// The log lags behind itself, which passes.
fn not_shown(position: Position) -> LogError {
    let detail = format!("the log does not show the commit at position {position} for now");
    LogError::new(Fault::Unreachable, detail)
}

fn before(position: Position) -> Position {
    Position(position.0.saturating_sub(1))
}
