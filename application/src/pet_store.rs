//! The use cases: list, get and create pets.

use std::{sync::Arc, time::Duration};

use domain::{Pet, PetId};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    commands::{CreatePet, Created, WriteError},
    log::{
        commit::{NodeId, OwnerId},
        position::LogPosition,
    },
    node::{
        applied::NotCaughtUp,
        follower::Follower,
        health::Health,
        state::NodeState,
        writer::{self, QueuedCreate, Writer},
    },
    page::{ListPets, Page},
    ports::{
        Clock, CommitId, Durability, DurabilityLevel, EventLog, Fault, LogError, LogIdentity, LogSource,
        Position, ReadModel, Version,
    },
    statistics::Statistics,
};

const LOGGING_INTERVAL: Duration = Duration::from_millis(250);
/// How far ahead of the known head a commit may be that a request waits for: more commits than are stored while it waits.
const COMMITS_AHEAD_MAX: u64 = 10_000;

/// The options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which nodes may write to the log.
    pub access: LogAccess,
    /// The id of this run of the node.
    pub node: NodeId,
    /// The required durability. While the log promises less, writes are rejected.
    pub required: DurabilityLevel,
    /// The log that this node has applied before, if any. A log that does not hold its newest commit is rejected.
    pub known: Option<LogIdentity>,
    /// The maximum number of pets, if there is one.
    pub pets_max: Option<usize>,
    /// The progress of the replay: the last applied position, and the last position of the log when the replay began.
    pub progress: watch::Sender<(Position, Position)>,
}

impl Options {
    /// The defaults for a log with this access.
    pub fn new(access: LogAccess) -> Self {
        Self {
            access,
            node: NodeId::random(),
            required: DurabilityLevel::Volatile,
            known: None,
            pets_max: None,
            progress: watch::Sender::default(),
        }
    }
}

/// Which nodes may write to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogAccess {
    /// Only this node: the engine locks the log.
    Exclusive,
    /// Other nodes too: this node follows their commits.
    Shared,
}

/// The pet store of one node. Reads are served from memory; writes go through one writer.
///
/// Dropping it does the same as [`close`](Self::close), without waiting.
pub struct PetStore {
    follower: Arc<Follower>,
    requests: mpsc::Sender<QueuedCreate>,
    /// Cancelled when the store is closed or dropped.
    stop: CancellationToken,
    /// The writer, the follower, and the task that logs changes.
    tasks: TaskTracker,
}

impl PetStore {
    /// The maximum number of queued requests: four full commits. A longer queue would only increase the waiting time.
    pub const QUEUE_MAX: usize = 4_096;
    /// How long a client waits for its pet to be durable.
    pub const WRITE_TIMEOUT: Duration = writer::APPEND_TIMEOUT;

    /// Replays the log into the read model and starts the writer. Closes the log after an error.
    pub async fn open(
        log: Arc<dyn EventLog>,
        read_model: Box<dyn ReadModel>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Self, LogError> {
        let follower = Arc::new(Follower::new(log, NodeState::new(read_model), options));
        if let Err(error) = follower.resume().await {
            follower.log.close().await;
            return Err(error);
        }
        // Otherwise, the first create of a node that may not write would show it.
        let unwritable = follower.log.check_writable().await.err();
        if let Some(error) = &unwritable {
            follower.change_health(|health| health.stop_writes(error));
        }
        let (requests, queue) = mpsc::channel(Self::QUEUE_MAX);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let writing = Writer::new(follower.clone(), clock, queue, stop.clone()).run(unwritable);
        tasks.spawn(supervise("writer", writing, follower.clone(), |health| &mut health.writes));
        let following = follower.clone().follow();
        let following = supervise("follower", following, follower.clone(), |health| &mut health.reads);
        tasks.spawn(stop.clone().run_until_cancelled_owned(following));
        tasks.spawn(stop.clone().run_until_cancelled_owned(log_changes(follower.clone())));
        Ok(Self { follower, requests, stop, tasks })
    }

    /// Returns one page of pets.
    pub fn list(&self, query: &ListPets) -> Result<Page, Fault> {
        let (((pets, next), total), position) =
            self.show(|pets| (pets.list(query), pets.count(query.status)))?;
        Ok(Page { pets, next, total, position })
    }

    /// Returns the pet with this id, and the last visible commit.
    pub fn get(&self, id: PetId) -> Result<(Option<Pet>, LogPosition), Fault> {
        self.show(|pets| pets.get(id))
    }

    /// The commit that [`list`](Self::list) and [`get`](Self::get) would return now. After the same commit, they show the
    /// same pets.
    pub fn shown(&self) -> Result<LogPosition, Fault> {
        Ok(self.show(|_| ())?.1)
    }

    /// Adds a pet. When this returns, the pet is durable and every later read of this node shows it.
    pub async fn create(&self, request: CreatePet) -> Result<Created, WriteError> {
        let (reply, replied) = oneshot::channel();
        self.requests.try_send(QueuedCreate { request, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => WriteError::Busy,
            mpsc::error::TrySendError::Closed(_) => WriteError::Unavailable(Fault::Stopped),
        })?;
        match time::timeout(Self::WRITE_TIMEOUT, replied).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(WriteError::Unavailable(Fault::Stopped)),
            Err(_) => Err(WriteError::Unavailable(Fault::Unreachable)),
        }
    }

    /// Waits until this commit is applied, so that reads of this node show its pets. Fails at once if the log will not hold
    /// it soon, or if too many requests of this owner wait.
    pub async fn caught_up(
        &self,
        position: impl Into<LogPosition>,
        by: &OwnerId,
        timeout: Duration,
    ) -> Result<(), NotCaughtUp> {
        let (position, state) = (position.into(), &self.follower.state);
        let known = self.follower.statistics.head().max(state.version().position);
        if position.position.0 > known.0.saturating_add(COMMITS_AHEAD_MAX) {
            return Err(NotCaughtUp);
        }
        // A node never goes back, so the commit at an applied position does not change.
        let reached = async {
            if let Some(wait) = state.applied.wait_for(position.position, by)? {
                wait.reached().await;
            }
            if self.follower.holds(position).await { Ok(()) } else { Err(NotCaughtUp) }
        };
        time::timeout(timeout, reached).await.unwrap_or(Err(NotCaughtUp))
    }

    /// The log, which may hold commits that are not visible on this node yet.
    pub fn log(&self) -> Arc<dyn LogSource> {
        self.follower.log.clone()
    }

    /// The commits that a log must hold to be accepted at the next startup: the first and the newest applied one.
    /// `None` for an empty log.
    pub fn identity(&self) -> Option<LogIdentity> {
        self.follower.state.identity()
    }

    /// Resolves when the log is no longer empty.
    pub async fn first_applied(&self) {
        self.follower.state.first.wait().await;
    }

    /// The id of the first commit, or `None` for an empty log.
    pub fn log_id(&self) -> Option<CommitId> {
        self.follower.state.first.get().copied()
    }

    /// The last visible commit.
    pub fn version(&self) -> Version {
        self.follower.state.version()
    }

    /// The last visible commit, as named by clients.
    pub fn log_position(&self) -> LogPosition {
        self.follower.state.show(|_| ()).1
    }

    /// The number of pets.
    pub fn count(&self) -> usize {
        self.follower.state.show(|pets| pets.count(None)).0
    }

    /// The maximum number of pets, if there is one.
    pub fn pets_max(&self) -> Option<usize> {
        self.follower.options.pets_max
    }

    /// The number of queued creates.
    pub fn waiting(&self) -> usize {
        Self::QUEUE_MAX - self.requests.capacity()
    }

    /// The counters since startup.
    pub fn statistics(&self) -> &Statistics {
        &self.follower.statistics
    }

    /// The number of known commits that this node has not applied yet.
    pub fn lag(&self) -> u64 {
        self.follower.statistics.head().0.saturating_sub(self.log_position().position.0)
    }

    /// The last position of a log that lacks the newest applied commit, or `None` while this node follows its log.
    pub fn rejected_head(&self) -> Option<Position> {
        self.follower.health.borrow().rejection().map(|_| self.follower.statistics.head())
    }

    /// The health of this node now.
    pub fn health(&self) -> Health {
        self.follower.current_health()
    }

    /// Notifies of changes of the health, except of the time since the head was last confirmed.
    pub fn health_changes(&self) -> watch::Receiver<Health> {
        self.follower.health.subscribe()
    }

    /// Stops accepting creates, finishes the queued ones, and closes the log. Reads continue from memory. An append with
    /// an unclear outcome stays unresolved once its clients have stopped waiting.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.follower.log.close().await;
    }

    /// Calls `query` with the pets, unless reads are rejected.
    fn show<T>(&self, query: impl FnOnce(&dyn ReadModel) -> T) -> Result<(T, LogPosition), Fault> {
        let (shown, position) = self.follower.state.show(|pets| {
            let stopped = self.follower.health.borrow().reads_stopped().map(|error| error.fault);
            stopped.map_or_else(|| Ok(query(pets)), Err)
        });
        Ok((shown?, position))
    }
}

impl Drop for PetStore {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a task. If it panics, that is the reason why writes or reads are stopped.
async fn supervise(
    part: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
    follower: Arc<Follower>,
    stopped: fn(&mut Health) -> &mut Option<LogError>,
) {
    // A `JoinSet`, so that the task ends with this one.
    let mut running = JoinSet::new();
    running.spawn(task);
    if let Some(Err(panic)) = running.join_next().await {
        let error = Fault::Stopped.error(format!(
            "the {part} stopped unexpectedly ({panic}): restart the service, and report this bug"
        ));
        follower.change_health(|health| *stopped(health) = Some(error));
    }
}

/// Logs every change of the readiness and of the durability level, for as long as it is polled.
async fn log_changes(follower: Arc<Follower>) {
    let mut known = follower.log.durability().level;
    let mut health_changes = follower.health.subscribe();
    let mut not_ready: Option<LogError> = None;
    loop {
        let health = follower.current_health();
        match (&not_ready, health.not_ready()) {
            (None, Some(error)) => {
                tracing::error!(target: "petstore::log", fault = error.fault.name(), %error, "not ready");
            }
            (Some(_), None) => tracing::info!(target: "petstore::log", "ready again"),
            (Some(before), Some(error)) if before != error => {
                tracing::warn!(target: "petstore::log", fault = error.fault.name(), %error, "still not ready");
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        not_ready = health.not_ready().cloned();
        let Durability { level, promise, .. } = follower.log.durability();
        if level != known {
            tracing::warn!(
                target: "petstore::log",
                before = known.name(), now = level.name(), %promise,
                "the durability of the log has changed"
            );
            known = level;
        }
        // A log that hangs changes nothing.
        let _ = time::timeout(LOGGING_INTERVAL, health_changes.changed()).await;
    }
}
