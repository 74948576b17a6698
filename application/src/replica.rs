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
    node_state::NodeState,
    ports::{EventLog, Fault, LogError, LogIdentity, Position, ReadBound, StoredRecord, Version},
    replay::{self, ReplayProgress},
    statistics::Statistics,
};

/// How long to wait for news before checking whether the log still responds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait after an error.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// How long to wait for a commit that was stored and is not shown yet.
const LAG_DELAY: Duration = Duration::from_millis(20);
/// How often a long replay logs its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// How long a node may go without a confirmed head before it calls itself not ready.
const MAX_STALENESS: Duration = Duration::from_secs(5);

/// Brings commits from the log into the state of the node.
#[derive(Clone)]
pub(crate) struct Replica {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) state: Arc<NodeState>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) statistics: Arc<Statistics>,
    /// Held from reading to applying.
    turn: Arc<Mutex<()>>,
    log_state: Arc<parking_lot::Mutex<LogState>>,
    progress: Arc<ReplayProgress>,
}

/// What this node knows about the log. A node never goes back: it drops nothing that it has applied, and follows only a log
/// that holds its newest commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum LogState {
    /// The log held the newest applied commit, and has responded since.
    #[default]
    Following,
    /// The log has not responded since, and may have been replaced.
    Disconnected,
    /// Nothing is written to this log: it failed, is damaged, or lacks the newest applied commit. This ends when it has been
    /// read successfully.
    Unusable(LogError),
}

impl Replica {
    pub(crate) fn new(log: Arc<dyn EventLog>, state: Arc<NodeState>, progress: Arc<ReplayProgress>) -> Self {
        let (monitor, statistics, turn, log_state) = Default::default();
        Self { log, state, monitor, statistics, turn, log_state, progress }
    }

    /// The last position of the log, which is thereby seen.
    pub(crate) async fn head(&self) -> Result<Position, LogError> {
        self.log.head().await.inspect(|head| self.statistics.seen(*head))
    }

    /// Replays the log, if it is the one that this store had before.
    pub(crate) async fn start(&self, known: Option<LogIdentity>) -> Result<(), LogError> {
        let mut least = Position::START;
        if let Some(known) = known {
            self.check_identity(known).await?;
            least = known.position;
        }
        // The log may be replaced at any moment: nothing is served below the recorded version.
        let head = self.head().await?;
        self.read_up_to(head.max(least)).await
    }

    /// Applies what another node wrote right after `base`, or the first part of it. One read, since every moment
    /// spent here is a chance for the others to be faster again.
    pub(crate) async fn overtaken(&self, base: Version) -> Result<(), LogError> {
        self.statistics.overtaken();
        let news = {
            let _turn = self.turn.lock().await;
            self.read_on().await?
        };
        if !news && self.state.version() == base {
            // It was stored and is not shown yet.
            time::sleep(LAG_DELAY).await;
        }
        Ok(())
    }

    /// Makes sure, before anything is appended, that the log is usable, and that it still holds the newest applied commit if
    /// it did not respond in between.
    pub(crate) async fn check_usable(&self) -> Result<(), LogError> {
        let state = self.log_state.lock().clone();
        match state {
            LogState::Following => Ok(()),
            LogState::Disconnected => self.check_holds(self.state.version()).await,
            LogState::Unusable(error) => Err(error),
        }
    }

    /// Why nothing may be written to the log, if it is unusable.
    pub(crate) fn unusable(&self) -> Option<LogError> {
        match &*self.log_state.lock() {
            LogState::Following | LogState::Disconnected => None,
            LogState::Unusable(error) => Some(error.clone()),
        }
    }

    /// The first and the newest applied commit, while this node follows its log.
    pub(crate) fn identity(&self) -> Option<LogIdentity> {
        let following = *self.log_state.lock() == LogState::Following;
        self.state.identity().filter(|_| following)
    }

    /// Follows the log again once it holds the newest applied commit, and applies what it holds by then.
    pub(crate) async fn resume(&self) -> Result<(), LogError> {
        let _turn = self.turn.lock().await;
        // A log that failed says here whether it was opened again.
        let head = self.head().await?;
        if let Some(identity) = self.state.identity() {
            self.check_identity(identity).await?;
        }
        self.read_up_to(head).await?;
        *self.log_state.lock() = LogState::Following;
        self.monitor.clear_log_error();
        Ok(())
    }

    /// Records why the log cannot be used. An unusable log stays unusable until it has been read again: losing the connection
    /// does not change that.
    pub(crate) fn record_failure(&self, error: &LogError) {
        let mut state = self.log_state.lock();
        if error.fault == Fault::Unreachable {
            if *state == LogState::Following {
                *state = LogState::Disconnected;
            }
            return;
        }
        let known = matches!(&*state, LogState::Unusable(known) if known.fault == error.fault);
        if error.fault == Fault::AnotherLog && !known {
            self.statistics.log_rejected();
            let (position, head) = (self.state.version().position.0, self.statistics.head().0);
            tracing::error!(position, head, "writes stopped: {error}");
        }
        *state = LogState::Unusable(error.clone());
    }

    /// Whether the applied history holds this commit. An old commit is read from the log.
    pub(crate) async fn holds(&self, bookmark: Bookmark) -> bool {
        if let Some(held) = self.state.holds(bookmark) {
            return held;
        }
        let Ok(found) = self.log.read(before(bookmark.position), ReadBound::ONE).await else { return false };
        found.first().is_some_and(|record| bookmark.hash == Some(bookmark::prefix(Digest::of(&record.bytes))))
    }

    /// Keeps up with a log that others write to, for as long as it is polled.
    pub(crate) async fn follow(self) {
        let mut confirmed = Instant::now();
        loop {
            let following = *self.log_state.lock() == LogState::Following;
            let polled = if following { self.poll().await } else { self.resume().await };
            match polled {
                Ok(()) => {
                    confirmed = Instant::now();
                    self.monitor.resume_following();
                }
                Err(error) => {
                    let away = error.fault == Fault::Unreachable;
                    // The writer may be looking at the log too, and may have begun before this was found.
                    let turn = self.turn.lock().await;
                    self.record_failure(&error);
                    if !away || confirmed.elapsed() > MAX_STALENESS {
                        self.monitor.stop_following(&error);
                    }
                    drop(turn);
                    time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Waits for the next commits and applies them.
    async fn poll(&self) -> Result<(), LogError> {
        let known = self.state.version().position;
        self.log.wait_for(known, POLL_INTERVAL).await?;
        if self.state.version().position > known {
            self.statistics.seen(self.state.version().position);
            // It was this node that wrote: if others did too, the next wait ends at once.
            return Ok(());
        }
        let head = self.head().await?;
        let version = self.state.version();
        match head.cmp(&version.position) {
            cmp::Ordering::Greater => {
                let _turn = self.turn.lock().await;
                self.read_on().await.map(|_| ())
            }
            // Nothing new, a head that is out of date, or a log that lacks the newest applied commit.
            cmp::Ordering::Equal | cmp::Ordering::Less => self.check_holds(version).await,
        }
    }

    /// Up to there and no further than needed: others may write faster than this node reads the last of it.
    async fn read_up_to(&self, head: Position) -> Result<(), LogError> {
        let mut ahead = None;
        let mut logged = Instant::now();
        self.progress.record(self.state.version().position, head);
        while self.state.version().position < head {
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
                ahead = Some(self.news_in(read?, self.state.version()).await?);
            } else {
                self.apply(records).await?;
            }
            let position = self.state.version().position;
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
            let state = self.state.clone();
            let applied = task::spawn_blocking(move || replay::apply_on_all_cores(&state, &records));
            return applied.await.expect("a replay does not panic, and nobody cancels it");
        }
        replay::apply(&self.state, &records)?;
        // A long replay must not keep other tasks of this worker waiting.
        task::yield_now().await;
        Ok(())
    }

    /// The next records, read along with the last one that was applied: a log that was replaced in the meantime does not
    /// continue the history of this node.
    async fn next_records(&self) -> Result<Vec<StoredRecord>, LogError> {
        let version = self.state.version();
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
        self.compare(version, records.first()).await?;
        let news = records.split_off(1);
        if !news.is_empty() {
            return Ok(news);
        }
        // One record is all that an engine owes, so there may be more.
        let news = self.log.read(version.position, ReadBound::BATCH).await?;
        if !news.is_empty() {
            self.check_holds(version).await?;
        }
        Ok(news)
    }

    /// Rejects a log that begins with another commit, or does not hold the newest one.
    async fn check_identity(&self, identity: LogIdentity) -> Result<(), LogError> {
        let LogIdentity { first, position, .. } = identity;
        let found = self.log.read(Position::START, ReadBound::ONE).await?;
        match found.first().map(codec::decode_stored).transpose()? {
            Some(commit) if commit.id == first => self.check_holds(identity.version()).await,
            Some(_) => {
                let detail = format!(
                    "the log begins with another commit than the log that this node has applied up to position {position}"
                );
                Err(LogError::new(Fault::AnotherLog, detail))
            }
            None if self.head().await? > Position::START => Err(not_shown(Position::START.next())),
            None => {
                let detail =
                    format!("the log is empty, but this node has applied commits up to position {position}");
                Err(LogError::new(Fault::AnotherLog, detail))
            }
        }
    }

    /// Rejects a log that does not hold this commit.
    pub(crate) async fn check_holds(&self, version: Version) -> Result<(), LogError> {
        if version == Version::START {
            return Ok(());
        }
        let found = self.log.read(before(version.position), ReadBound::ONE).await?;
        self.compare(version, found.first()).await
    }

    async fn compare(&self, version: Version, found: Option<&StoredRecord>) -> Result<(), LogError> {
        let (Version { position, .. }, Some(applied)) = (version, version.commit) else { return Ok(()) };
        let detail = match found.map(codec::decode_stored).transpose()? {
            Some(commit) if commit.id == applied => return Ok(()),
            Some(_) => format!(
                "the log holds another commit at position {position} than the one that this node has applied"
            ),
            None => {
                let head = self.head().await?;
                if head >= position {
                    return Err(not_shown(position));
                }
                format!(
                    "the log ends at position {head}, but this node has applied commits up to position {position}"
                )
            }
        };
        Err(LogError::new(Fault::AnotherLog, detail))
    }
}

/// A replica of the engine is behind the head that it reported; retry.
fn not_shown(position: Position) -> LogError {
    let detail = format!("the log does not show the commit at position {position} for now");
    LogError::new(Fault::Unreachable, detail)
}

fn before(position: Position) -> Position {
    Position(position.0.saturating_sub(1))
}
