//! The use cases.

use std::{future, sync::Arc, time::Duration};

use domain::PetId;
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinError, JoinHandle, JoinSet},
    time,
};

use crate::{
    bookmark::Bookmark,
    commands::{Command, CreatePet, Created, Reply, WriteError},
    decision::Request,
    health::{Health, Monitor},
    node_state::NodeState,
    options::{LogAccess, Options},
    page::{ListPets, PageEnd, PetView},
    ports::{
        Clock, CommitId, Durability, EventLog, Fault, LogError, LogIdentity, Position, ReadModel,
        StorageStats, Version,
    },
    replay::ReplayProgress,
    replica::Replica,
    statistics::Statistics,
    transfer::Feed,
    writer::{self, Writer},
};

/// The pet store of one node: reads from memory, writes through the one writer.
pub struct PetStore {
    replica: Replica,
    requests: mpsc::Sender<Request>,
    writer: JoinHandle<()>,
    /// The follower of a shared log, if there is one; it ends with the store.
    following: JoinSet<()>,
    pets_max: Option<usize>,
}

/// The commit was not reached in time, or belongs to another history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this node has not applied that commit")]
pub struct NotCaughtUp;

impl PetStore {
    /// How many requests may wait for the writer. Four full commits: more would only wait longer.
    pub const QUEUE_MAX: usize = 4_096;
    /// How long a caller waits for its pet to be durable.
    pub const WRITE_TIMEOUT: Duration = writer::APPEND_TIMEOUT;

    /// Replays the log into the read model and starts the writer.
    pub async fn open(
        log: Arc<dyn EventLog>,
        read_model: Arc<dyn ReadModel>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Self, LogError> {
        Self::open_with_progress(log, read_model, clock, options, Arc::default()).await
    }

    /// Opens the store like [`open`](Self::open), and reports the progress of the replay.
    pub async fn open_with_progress(
        log: Arc<dyn EventLog>,
        read_model: Arc<dyn ReadModel>,
        clock: Arc<dyn Clock>,
        options: Options,
        progress: Arc<ReplayProgress>,
    ) -> Result<Self, LogError> {
        let state = Arc::new(NodeState::new(read_model));
        let replica = Replica::new(log, state, progress);
        replica.start(options.known).await?;
        let (requests, queue) = mpsc::channel(Self::QUEUE_MAX);
        let writer = Writer::new(replica.clone(), clock, queue, options);
        let writer = tokio::spawn(supervise_writer(writer, replica.monitor.clone()));
        let mut following = JoinSet::new();
        match options.access {
            LogAccess::Exclusive => {}
            LogAccess::Shared => {
                following.spawn(supervise_follower(replica.clone()));
            }
        }
        let pets_max = options.pets_max;
        Ok(Self { replica, requests, writer, following, pets_max })
    }

    /// Hands one page of pets to `sink`, and says where it was taken. Nothing is applied until `sink` returns.
    pub fn list(
        &self,
        query: &ListPets,
        sink: &mut dyn FnMut(PetView<'_>),
    ) -> Result<(PageEnd, Bookmark), Fault> {
        self.show(|pets| pets.list(query, sink))
    }

    /// Hands one pet to `sink`, if there is one, and says where that was looked up.
    pub fn get(&self, id: PetId, sink: &mut dyn FnMut(PetView<'_>)) -> Result<(Version, Bookmark), Fault> {
        self.show(|pets| pets.get(id, sink))
    }

    /// The commit that [`list`](Self::list) and [`get`](Self::get) would show now: what they showed at the same one is the same.
    pub fn shown(&self) -> Result<(Version, Bookmark), Fault> {
        self.show(ReadModel::version)
    }

    /// Adds a pet. When this returns, the pet is durable and every later read of this node shows it.
    pub async fn create(&self, request: CreatePet) -> Result<Created, WriteError> {
        self.write(Command::Create(request)).await
    }

    async fn write(&self, command: Command) -> Reply {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(Request { command, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => WriteError::Busy,
            mpsc::error::TrySendError::Closed(_) => WriteError::Unavailable(Fault::Stopped),
        })?;
        match time::timeout(Self::WRITE_TIMEOUT, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(WriteError::Unavailable(Fault::Stopped)),
            Err(_) => Err(WriteError::Unavailable(Fault::Unreachable)),
        }
    }

    /// Waits until this commit is applied, so that its pets are seen here too.
    pub async fn caught_up(
        &self,
        bookmark: impl Into<Bookmark>,
        timeout: Duration,
    ) -> Result<(), NotCaughtUp> {
        let bookmark = bookmark.into();
        let mut positions = self.replica.state.positions();
        // Another commit at that position may be one that the log no longer holds, which this node will notice.
        let reached = async {
            let held = |_: &Position| self.replica.state.holds(bookmark) != Some(false);
            positions.wait_for(held).await.is_ok() && self.replica.holds(bookmark).await
        };
        match time::timeout(timeout, reached).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(NotCaughtUp),
        }
    }

    /// The last position of the log itself, which readers of this node may not see yet.
    pub async fn log_head(&self) -> Result<Position, LogError> {
        self.replica.log.head().await
    }

    /// The stored records after this position.
    pub fn log_feed(&self, after: Position) -> Feed {
        Feed::after(self.replica.log.clone(), after)
    }

    /// What a log must hold to be accepted by the next start. `None` while the log is empty, and while this node does not
    /// follow it.
    pub fn identity(&self) -> Option<LogIdentity> {
        self.replica.identity()
    }

    /// Resolves when the log is no longer empty, and never if this store is closed before that.
    pub fn first_applied(&self) -> impl Future<Output = ()> + use<> {
        let mut positions = self.replica.state.positions();
        async move {
            if positions.wait_for(|position| *position > Position::START).await.is_err() {
                future::pending::<()>().await;
            }
        }
    }

    /// The id of the first commit, or `None` for an empty log.
    pub fn log_id(&self) -> Option<CommitId> {
        self.replica.state.first()
    }

    /// The last commit that readers see.
    pub fn version(&self) -> Version {
        self.replica.state.show(ReadModel::version).0
    }

    /// The same, as clients name it.
    pub fn bookmark(&self) -> Bookmark {
        self.replica.state.show(|_| ()).1
    }

    /// How many pets there are.
    pub fn count(&self) -> usize {
        self.replica.state.show(ReadModel::count).0
    }

    /// How many pets there may be before no more are added, if there is a limit.
    pub fn pets_max(&self) -> Option<usize> {
        self.pets_max
    }

    /// How many creates wait for the writer.
    pub fn waiting(&self) -> usize {
        Self::QUEUE_MAX - self.requests.capacity()
    }

    /// What was counted since the start.
    pub fn statistics(&self) -> &Statistics {
        &self.replica.statistics
    }

    /// How many commits the log is known to have that this node has not applied yet.
    pub fn lag(&self) -> u64 {
        self.replica.statistics.lag(self.version().position)
    }

    /// The last position of a log that lacks the newest applied commit, or `None` while this node follows its log.
    pub fn rejected_head(&self) -> Option<Position> {
        let rejected = self.replica.unusable().is_some_and(|error| error.fault == Fault::AnotherLog);
        rejected.then(|| self.replica.statistics.head())
    }

    /// How long ago the log was last seen.
    pub fn log_unseen_for(&self) -> Duration {
        self.replica.statistics.unseen_for()
    }

    /// What is known about the storage.
    pub fn storage(&self) -> StorageStats {
        self.replica.log.storage_stats()
    }

    /// What this node can do right now.
    pub fn health(&self) -> Health {
        self.replica.monitor.now()
    }

    /// What the log promises about an answered create.
    pub fn durability(&self) -> Durability {
        self.replica.log.durability()
    }

    /// Lets go of the log. Nobody waits for an answer any more, so what is still in doubt stays so.
    pub async fn close(self) {
        drop((self.following, self.requests));
        // A panic of the writer was reported when it happened.
        let _ = self.writer.await;
    }

    /// Looks at the pets, unless they are not to be shown.
    fn show<T>(&self, look: impl FnOnce(&dyn ReadModel) -> T) -> Result<(T, Bookmark), Fault> {
        let Replica { state, monitor, .. } = &self.replica;
        let (shown, bookmark) = state.show(|pets| match monitor.reads() {
            None => Ok(look(pets)),
            Some(error) => Err(error.fault),
        });
        Ok((shown?, bookmark))
    }
}

/// Runs the writer. If it panics, nobody is left to write: say so instead of dying silently.
async fn supervise_writer(writer: Writer, monitor: Arc<Monitor>) {
    if let Err(panic) = tokio::spawn(writer.run()).await {
        monitor.stop_writes(&stopped("writer", &panic));
    }
}

/// Runs the follower. If it panics, nobody looks any more at what others write: say so too.
async fn supervise_follower(replica: Replica) {
    let monitor = replica.monitor.clone();
    // A set, not a task of its own: it ends with the store.
    let mut following = JoinSet::new();
    following.spawn(replica.follow());
    if let Some(Err(panic)) = following.join_next().await {
        monitor.stop_following(&stopped("follower", &panic));
    }
}

fn stopped(part: &str, panic: &JoinError) -> LogError {
    let detail = format!("the {part} stopped ({panic}): restart the service and report this");
    LogError::new(Fault::Stopped, detail)
}
