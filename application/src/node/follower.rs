//! Reads the log: replays it at startup, catches up before a decision is repeated, and follows a log that other nodes
//! write to. The same for all engines.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::{Mutex, watch},
    time::{self, Instant},
};

use crate::{
    log::{
        codec,
        commit::NodeId,
        digest::Digest,
        position::{self, LogPosition},
    },
    node::{
        health::Health,
        replay,
        state::NodeState,
        turns::{READ_INTERVAL, Turns},
    },
    pet_store::{LogAccess, Options},
    ports::{
        EventLog, Fault, LogError, LogIdentity, Position, ReadBound, StoredRecord, Version, wait_for_records,
    },
    statistics::Statistics,
};

/// How often the head is read, which checks whether the log still responds and is still the same.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The delay after an error.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// The delay before reading a commit that is stored but not visible yet.
const LAG_DELAY: Duration = Duration::from_millis(20);
/// How often a long replay logs its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Applies commits of the log to the state of the node.
pub(crate) struct Follower {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) state: NodeState,
    /// The health, except for the time since the head was last confirmed.
    pub(crate) health: watch::Sender<Health>,
    pub(crate) statistics: Statistics,
    pub(crate) turns: watch::Sender<Turns>,
    pub(crate) options: Options,
    /// Whether the writer waits for its turn, and so for the commits of other nodes.
    pub(crate) writer_waits: watch::Sender<bool>,
    /// Held from reading a batch to applying it.
    apply_lock: Mutex<()>,
}

impl Follower {
    pub(crate) fn new(log: Arc<dyn EventLog>, state: NodeState, options: Options) -> Self {
        Self {
            log,
            state,
            health: watch::Sender::default(),
            statistics: Statistics::default(),
            turns: watch::Sender::new(Turns::new(options.node, Instant::now())),
            options,
            writer_waits: watch::Sender::default(),
            apply_lock: Mutex::default(),
        }
    }

    /// The health of this node now. Only a node on a shared log can be out of date.
    pub(crate) fn current_health(&self) -> Health {
        let health = self.health.borrow().clone();
        match self.options.access {
            LogAccess::Exclusive => health,
            LogAccess::Shared => health.at_staleness(self.statistics.unseen_for()),
        }
    }

    /// Changes the health. Logs an ERROR if the log now lacks commits that this node has applied.
    pub(crate) fn change_health(&self, change: impl FnOnce(&mut Health)) {
        // Read first: the state must not be locked while the health is locked.
        let position = self.state.version().position.0;
        self.health.send_if_modified(|health| {
            let before = health.clone();
            change(health);
            if let Some(error) = health.rejection().filter(|_| before.rejection().is_none()) {
                self.statistics.rejected_logs.fetch_add(1, Relaxed);
                tracing::error!(
                    target: "petstore::log",
                    position, head = self.statistics.head().0, %error,
                    "writes stopped: the log lacks applied commits"
                );
            }
            before != *health
        });
    }

    /// Changes when this node may append. A node that writes alone takes no turns.
    pub(crate) fn change_turns(&self, change: impl FnOnce(&mut Turns)) {
        if self.options.access == LogAccess::Shared {
            self.turns.send_modify(change);
        }
    }

    /// Reads the last position of the log, and records it. A log that is full or damaged responds too; one whose thread
    /// has ended does not.
    pub(crate) async fn head(&self) -> Result<Position, LogError> {
        let head = self.log.head().await;
        match &head {
            Ok(head) => self.statistics.seen(*head),
            Err(error) if matches!(error.fault, Fault::Unreachable | Fault::Stopped) => {}
            Err(_) => self.statistics.confirm(),
        }
        head
    }

    /// Applies the commits of other nodes, or the first part of them. Reads once, because other nodes may append again
    /// at any moment.
    pub(crate) async fn catch_up(&self) -> Result<(), LogError> {
        let _applying = self.apply_lock.lock().await;
        let records = self.log.read(self.state.version().position, ReadBound::BATCH).await?;
        let authors = self.apply(&records).await?;
        if !authors.is_empty() {
            let now = Instant::now();
            self.change_turns(|turns| {
                for (position, author) in authors {
                    turns.arrived(position, author, now);
                }
            });
        }
        Ok(())
    }

    /// Applies records. If they do not follow the newest applied commit, a second read tells a replaced log from damage.
    async fn apply(&self, records: &[StoredRecord]) -> Result<Vec<(Position, NodeId)>, LogError> {
        let applied = replay::apply(&self.state, records).await;
        if applied.is_err() {
            self.check_holds(self.state.version()).await?;
        }
        applied
    }

    /// Applies the commits of other nodes after `base`.
    pub(crate) async fn overtaken(&self, base: Version) -> Result<(), LogError> {
        self.catch_up().await?;
        if self.state.version() == base {
            // The other commit is stored but not visible yet, or the log was replaced.
            self.check_holds(base).await?;
            time::sleep(LAG_DELAY).await;
        }
        Ok(())
    }

    /// Checks before an append that the log is usable, and that it still holds the newest applied commit if it was
    /// disconnected.
    pub(crate) async fn check_usable(&self) -> Result<(), LogError> {
        let error = self.health.borrow().log.clone();
        match error {
            None => Ok(()),
            Some(error) if error.fault != Fault::Unreachable => Err(error),
            Some(_) => self.check_holds(self.state.version()).await,
        }
    }

    /// Follows the log if it holds the newest commit that this node has applied, now or before its startup. Applies the
    /// commits after the newest one.
    pub(crate) async fn resume(&self) -> Result<(), LogError> {
        let _applying = self.apply_lock.lock().await;
        // Fails if the log has not been reopened.
        let mut last = self.head().await?;
        if let Some(known) = self.state.identity().or(self.options.known) {
            self.check_identity(known).await?;
            // The log may be replaced at any moment.
            last = last.max(known.position);
        }
        self.read_up_to(last).await?;
        self.statistics.confirm();
        self.change_health(|health| health.log = None);
        Ok(())
    }

    /// Whether the applied history holds this commit. Reads an old commit from the log.
    pub(crate) async fn holds(&self, position: LogPosition) -> bool {
        if let Some(held) = self.state.holds(position) {
            return held;
        }
        let Ok(found) = self.log.read(position.position.before(), ReadBound::ONE).await else { return false };
        let prefix = |record: &StoredRecord| position::prefix(Digest::of(&record.bytes));
        found.first().map(prefix).is_some_and(|hash| position.hash == Some(hash))
    }

    /// Follows the log, for as long as it is polled. A log that only this node writes to is checked, and not read.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut head_read = Instant::now();
        loop {
            let following = self.health.borrow().log.is_none();
            let polled = match self.options.access {
                LogAccess::Exclusive => {
                    time::sleep(POLL_INTERVAL).await;
                    self.head().await.map(drop)
                }
                LogAccess::Shared if following => self.poll(&mut head_read).await,
                LogAccess::Shared => self.resume().await,
            };
            match polled {
                Ok(()) => self.statistics.confirm(),
                Err(error) => {
                    self.change_health(|health| match self.options.access {
                        // Reads still show every pet. The writer knows the reason if it has stopped.
                        LogAccess::Exclusive if health.not_ready().is_some() => {}
                        LogAccess::Exclusive => health.stop_writes(&error),
                        LogAccess::Shared => health.stop_following(&error),
                    });
                    time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Waits for the next commits and applies them. Reads the head if there are none, or if it was not read for a while.
    async fn poll(&self, head_read: &mut Instant) -> Result<(), LogError> {
        let mut writer_waits = self.writer_waits.subscribe();
        let _ = time::timeout(READ_INTERVAL, writer_waits.wait_for(|waits| *waits)).await;
        let known = self.state.version().position;
        let next = self.turns.borrow().next_relevant(known);
        let timeout = if next == known.next() { POLL_INTERVAL } else { READ_INTERVAL };
        wait_for_records(&*self.log, next.before(), timeout).await;
        if self.state.version().position == known {
            self.catch_up().await?;
        }
        let version = self.state.version();
        if version.position > known && head_read.elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        *head_read = Instant::now();
        if self.head().await? <= version.position {
            // Nothing new, an outdated head, or a log that lacks the newest applied commit.
            self.check_holds(version).await?;
        }
        Ok(())
    }

    /// Applies commits at least up to `head`. Later ones may be left to the next read, because other nodes may write
    /// faster than this node reads.
    async fn read_up_to(&self, head: Position) -> Result<(), LogError> {
        let mut position = self.state.version().position;
        let mut logged = Instant::now();
        self.options.progress.send_replace((position, head));
        let read_after = async |position| {
            if position < head { self.log.read(position, ReadBound::BATCH).await } else { Ok(Vec::new()) }
        };
        let mut records = read_after(position).await?;
        while position < head {
            let Some(last) = records.last() else { return Err(not_shown(head)) };
            // Read the next records while these are applied.
            let (applied, read) = tokio::join!(self.apply(&records), read_after(last.position));
            applied?;
            records = read?;
            position = self.state.version().position;
            self.options.progress.send_replace((position, head));
            if logged.elapsed() >= PROGRESS_INTERVAL {
                logged = Instant::now();
                tracing::info!(
                    target: "petstore::log",
                    position = position.0, head = head.0,
                    "replaying the log"
                );
            }
        }
        Ok(())
    }

    /// Rejects a log that starts with a different commit, or does not hold the newest one.
    async fn check_identity(&self, identity: LogIdentity) -> Result<(), LogError> {
        let LogIdentity { first, position, .. } = identity;
        let found = self.log.read(Position::START, ReadBound::ONE).await?;
        match found.first().map(codec::decode_stored).transpose()? {
            Some(commit) if commit.id == first => self.check_holds(identity.version()).await,
            Some(_) => {
                Err(Fault::AnotherLog.error(format!(
                    "this is not the log that this node has applied up to position {position}: its first commit is different"
                )))
            }
            None if self.head().await? > Position::START => Err(not_shown(Position::START.next())),
            None => Err(Fault::AnotherLog.error(format!(
                "the log is empty, but this node has applied commits up to position {position}"
            ))),
        }
    }

    /// Rejects a log that does not hold this commit.
    pub(crate) async fn check_holds(&self, version: Version) -> Result<(), LogError> {
        let Version { position, commit: Some(applied) } = version else { return Ok(()) };
        let found = self.log.read(position.before(), ReadBound::ONE).await?;
        let detail = match found.first().map(codec::decode_stored).transpose()? {
            Some(commit) if commit.id == applied => return Ok(()),
            Some(_) => format!(
                "the log holds a different commit at position {position} than the one that this node has applied"
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
        Err(Fault::AnotherLog.error(detail))
    }
}

/// A replica of the engine is behind the head that it reported; retry.
fn not_shown(position: Position) -> LogError {
    Fault::Unreachable.error(format!("the commit at position {position} is not visible yet"))
}
