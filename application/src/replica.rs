//! How a node reads the log: it replays the log at the start, catches up before it makes a decision again,
//! and follows a log that other nodes write to. Written once for all engines.

use std::{cmp, sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    task,
    time::{self, Instant},
};

use crate::{
    bookmark::{self, Bookmark},
    codec,
    digest::Digest,
    health::Monitor,
    ports::{EventLog, Fault, LogError, Position, ReadBound, StoredRecord, Version},
    projection::{Projection, another_log},
    replay::{self, ReplayProgress},
    statistics::Statistics,
};

/// How long to wait for news before checking whether the log still responds.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// How long to wait for a commit that was stored and is not shown yet.
const LAG_PAUSE: Duration = Duration::from_millis(20);
/// How often a long replay logs its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// How long a node may go without a confirmed head before it calls itself not ready.
const BLIND_MAX: Duration = Duration::from_secs(5);

/// Brings commits from the log into the projection.
#[derive(Clone)]
pub(crate) struct Replica {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) projection: Arc<Projection>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) statistics: Arc<Statistics>,
    /// Held from reading to applying: nothing that was read before a reset is applied after it.
    turn: Arc<Mutex<()>>,
    sight: Arc<parking_lot::Mutex<Sight>>,
    progress: Arc<ReplayProgress>,
}

/// What is known about the log since it was last compared with what was applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Sight {
    /// It has responded ever since.
    #[default]
    Clear,
    /// It did not respond for a while, and may have been replaced since.
    Lost,
    /// It is not fit to be written to: what is stored there now may never be read again.
    Unfit(LogError),
}

impl Replica {
    pub(crate) fn new(
        log: Arc<dyn EventLog>,
        projection: Arc<Projection>,
        progress: Arc<ReplayProgress>,
    ) -> Self {
        let (monitor, statistics, turn, sight) = Default::default();
        Self { log, projection, monitor, statistics, turn, sight, progress }
    }

    /// The last position of the log, which is thereby seen.
    pub(crate) async fn head(&self) -> Result<Position, LogError> {
        self.log.head().await.inspect(|head| self.statistics.seen(*head))
    }

    /// Applies everything that the log holds by now.
    pub(crate) async fn catch_up(&self) -> Result<(), LogError> {
        let head = self.head().await?;
        let _turn = self.turn.lock().await;
        self.recognise().await?;
        self.read_up_to(head).await
    }

    /// Applies what another node wrote right after `base`, or the first part of it. One read, since every moment
    /// spent here is a chance for the others to be faster again.
    pub(crate) async fn overtaken(&self, base: Version) -> Result<(), LogError> {
        self.statistics.overtaken();
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

    /// Makes sure, before anything is appended, that the log was not found unfit, and that it is still the one that was
    /// read, if it was out of sight in between.
    pub(crate) async fn compare(&self) -> Result<(), LogError> {
        let sight = self.sight.lock().clone();
        match sight {
            Sight::Clear => Ok(()),
            Sight::Lost => self.divergence(self.projection.version()).await?.map_or(Ok(()), Err),
            Sight::Unfit(error) => Err(error),
        }
    }

    /// Why nothing may be written to the log, if it was found unfit.
    pub(crate) fn unfit(&self) -> Option<LogError> {
        match &*self.sight.lock() {
            Sight::Clear | Sight::Lost => None,
            Sight::Unfit(error) => Some(error.clone()),
        }
    }

    /// Catches up after the log was out of sight. If its history is no longer the one that was read before, everything
    /// is dropped and replayed, and nothing is read meanwhile: events that no longer exist must not be served.
    pub(crate) async fn rejoin(&self) -> Result<(), LogError> {
        // Whatever was found out about the log before this turn is older than what is seen now.
        let _turn = self.turn.lock().await;
        // A log that failed says here whether it was opened again.
        let head = self.head().await?;
        let version = self.projection.version();
        let mut diverged = self.divergence(version).await?;
        self.recognise().await?;
        if diverged.is_some() {
            // The log that was just recognised need not be the one that was compared before.
            diverged = self.divergence(version).await?;
        }
        if let Some(diverged) = diverged {
            self.monitor.reads_stopped(&diverged);
            self.projection.reset();
        }
        self.read_up_to(head).await?;
        let mut sight = self.sight.lock();
        match &*sight {
            Sight::Unfit(error) => self.monitor.fit_again(error),
            Sight::Clear | Sight::Lost => {}
        }
        *sight = Sight::Clear;
        drop(sight);
        self.monitor.reads_go_on();
        Ok(())
    }

    /// Whether the applied history holds this commit. An old commit is read from the log.
    pub(crate) async fn holds(&self, bookmark: Bookmark) -> bool {
        if let Some(held) = self.projection.holds(bookmark) {
            return held;
        }
        let Ok(found) = self.log.read(before(bookmark.position), ReadBound::ONE).await else { return false };
        found.first().is_some_and(|record| bookmark.hash == Some(bookmark::prefix(Digest::of(&record.bytes))))
    }

    /// Keeps up with a log that others write to, for as long as it is polled.
    pub(crate) async fn follow(self) {
        let mut confirmed = Instant::now();
        loop {
            let clear = *self.sight.lock() == Sight::Clear;
            let news = if clear { self.news().await } else { self.rejoin().await };
            match news {
                Ok(()) => {
                    confirmed = Instant::now();
                    self.monitor.in_sight();
                }
                Err(error) => {
                    let away = error.fault == Fault::Unreachable;
                    // The writer may be looking at the log too, and may have begun before this was found.
                    let turn = self.turn.lock().await;
                    self.lose_sight(&error);
                    if !away || confirmed.elapsed() > BLIND_MAX {
                        self.monitor.out_of_sight(&error);
                    }
                    drop(turn);
                    time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Records an error. A log that was found unfit stays unfit until it has been read again: losing the connection does
    /// not change that.
    fn lose_sight(&self, error: &LogError) {
        let mut sight = self.sight.lock();
        if error.fault != Fault::Unreachable {
            *sight = Sight::Unfit(error.clone());
        } else if *sight == Sight::Clear {
            *sight = Sight::Lost;
        }
    }

    async fn news(&self) -> Result<(), LogError> {
        let known = self.projection.version().position;
        self.log.wait_for(known, PATIENCE).await?;
        if self.projection.version().position > known {
            self.statistics.seen(self.projection.version().position);
            // It was this node that wrote: if others did too, the next wait ends at once.
            return Ok(());
        }
        let head = self.head().await?;
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
        let mut ahead = None;
        let mut logged = Instant::now();
        self.progress.record(self.projection.version().position, head);
        while self.projection.version().position < head {
            let records = match ahead.take() {
                Some(records) => records,
                None => self.next_records().await?,
            };
            let Some(last) = records.last().map(|record| record.position) else {
                return Err(not_shown(head));
            };
            if last < head && replay::is_worth_sharing(&records) {
                // The log is read on while these are applied.
                let reading = self.log.read(before(last), ReadBound::BATCH);
                let (applied, read) = tokio::join!(self.apply(records), reading);
                applied?;
                ahead = Some(self.news_in(read?, self.projection.version()).await?);
            } else {
                self.apply(records).await?;
            }
            let position = self.projection.version().position;
            self.progress.record(position, head);
            if logged.elapsed() >= PROGRESS_INTERVAL {
                logged = Instant::now();
                tracing::info!(position = position.0, head = head.0, "replaying the log");
            }
        }
        Ok(())
    }

    /// Reads and applies the next commits, and tells whether there were any.
    async fn read_on(&self) -> Result<bool, LogError> {
        let records = self.next_records().await?;
        let news = !records.is_empty();
        self.apply(records).await?;
        Ok(news)
    }

    async fn apply(&self, records: Vec<StoredRecord>) -> Result<(), LogError> {
        if replay::is_worth_sharing(&records) {
            let projection = self.projection.clone();
            let applied = task::spawn_blocking(move || replay::apply_on_all_cores(&projection, &records));
            return applied.await.expect("a replay does not panic, and nobody cancels it");
        }
        replay::apply(&self.projection, &records)?;
        // A long replay must not keep other tasks of this worker waiting.
        task::yield_now().await;
        Ok(())
    }

    /// The next records, read along with the last one that was applied: an engine may be restored from a backup
    /// behind our back, and what it holds then does not continue our history.
    async fn next_records(&self) -> Result<Vec<StoredRecord>, LogError> {
        let version = self.projection.version();
        let records = self.log.read(before(version.position), ReadBound::BATCH).await?;
        match version.commit {
            None => Ok(records),
            Some(_) => self.news_in(records, version).await,
        }
    }

    /// What follows `version` in records that begin with it.
    async fn news_in(
        &self,
        mut records: Vec<StoredRecord>,
        version: Version,
    ) -> Result<Vec<StoredRecord>, LogError> {
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

    /// Refuses a log that was emptied or begins differently than the one that this store had. Everything that was read
    /// before is kept: somebody may have dropped or mixed up a log, and what this node holds may be all that is left.
    async fn recognise(&self) -> Result<(), LogError> {
        let Some(first) = self.projection.first() else { return Ok(()) };
        let found = self.log.read(Position::START, ReadBound::ONE).await?;
        let what = match found.first().map(codec::decode_stored).transpose()? {
            Some(commit) if commit.id == first => return Ok(()),
            Some(_) => "begins with another commit than before",
            None if self.log.head().await? > Position::START => {
                return Err(not_shown(Position::START.next()));
            }
            None => "is empty, but held commits before",
        };
        Err(another_log(what))
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
