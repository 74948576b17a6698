//! The use cases: list, create, get.

use std::{sync::Arc, time::Duration};

use chrono::TimeDelta;
use domain::{Pet, PetId};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinError, JoinHandle, JoinSet},
    time,
};

use crate::{
    clock_watch,
    create::{CreateError, CreatePet, Created},
    health::{Health, Monitor},
    options::Options,
    page::{ListPets, Page},
    ports::{Clock, Durability, EventLog, Fault, LogError, Position, ReadModel, Version},
    projection::Projection,
    replica::Replica,
    turns::Sharing,
    writer::{self, Request, Writer},
};

/// The pet store of one node: reads from memory, writes through the one writer.
pub struct PetStore {
    replica: Replica,
    requests: mpsc::Sender<Request>,
    writer: JoinHandle<()>,
    /// The follower of a shared log, if there is one; it ends with the store.
    following: JoinSet<()>,
    pets_max: Option<usize>,
    clock: Arc<dyn Clock>,
}

/// The position was not reached in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this node has not applied that position yet")]
pub struct NotCaughtUp;

impl PetStore {
    /// How many requests may wait for the writer. Four full commits: more would only wait longer.
    pub const QUEUE_MAX: usize = 4_096;
    /// How long a caller waits for its pet to be durable.
    pub const WRITE_PATIENCE: Duration = writer::APPEND_TIMEOUT;

    /// Replays the log into the read model and starts the writer.
    pub async fn open(
        log: Arc<dyn EventLog>,
        read_model: Arc<dyn ReadModel>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Self, LogError> {
        let projection = Arc::new(Projection::new(read_model));
        let replica = Replica::new(log, projection);
        replica.catch_up().await?;
        let (requests, queue) = mpsc::channel(Self::QUEUE_MAX);
        let writer = Writer::new(replica.clone(), clock.clone(), queue, options);
        let writer = tokio::spawn(supervise_writer(writer, replica.monitor.clone()));
        let mut following = JoinSet::new();
        match options.sharing {
            Sharing::Alone => {}
            Sharing::Shared => {
                following.spawn(supervise_follower(replica.clone()));
            }
        }
        Ok(Self { replica, requests, writer, following, pets_max: options.pets_max, clock })
    }

    /// One page of pets.
    pub fn list(&self, query: &ListPets) -> Result<Page, Fault> {
        self.readable()?;
        Ok(self.replica.projection.read_model().list(query))
    }

    /// One pet.
    pub fn get(&self, id: PetId) -> Result<Option<Pet>, Fault> {
        self.readable()?;
        Ok(self.replica.projection.read_model().get(id))
    }

    /// Adds a pet. When this returns, the pet is durable and every later read of this node shows it.
    pub async fn create(&self, request: CreatePet) -> Result<Created, CreateError> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(Request { create: request, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CreateError::Busy,
            mpsc::error::TrySendError::Closed(_) => CreateError::Unavailable(Fault::Stopped),
        })?;
        match time::timeout(Self::WRITE_PATIENCE, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(CreateError::Unavailable(Fault::Stopped)),
            Err(_) => Err(CreateError::Unavailable(Fault::Unreachable)),
        }
    }

    /// Waits until `position` is applied, so that its pets are seen here too.
    pub async fn caught_up(&self, position: Position, patience: Duration) -> Result<(), NotCaughtUp> {
        let mut positions = self.replica.projection.positions();
        let reached = positions.wait_for(|applied| *applied >= position);
        match time::timeout(patience, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotCaughtUp),
        }
    }

    /// The last commit that readers see.
    pub fn version(&self) -> Version {
        self.replica.projection.read_model().version()
    }

    /// How many pets there are.
    pub fn count(&self) -> usize {
        self.replica.projection.read_model().count()
    }

    /// How many pets there may be before no more are added, if there is a limit.
    pub fn pets_max(&self) -> Option<usize> {
        self.pets_max
    }

    /// How far the clock of this node is behind the latest time in the log: more than moments show that a clock is wrong.
    pub fn clock_behind_log(&self) -> TimeDelta {
        let newest = self.replica.projection.look(|state| state.history.clock.newest());
        clock_watch::behind(self.clock.now(), newest)
    }

    /// How many creates wait for the writer.
    pub fn waiting(&self) -> usize {
        Self::QUEUE_MAX - self.requests.capacity()
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

    fn readable(&self) -> Result<(), Fault> {
        self.replica.monitor.reads().map_or(Ok(()), |error| Err(error.fault))
    }
}

/// Runs the writer. If it panics, nobody is left to write: say so instead of dying silently.
async fn supervise_writer(writer: Writer, monitor: Arc<Monitor>) {
    if let Err(panic) = tokio::spawn(writer.run()).await {
        monitor.writes_stopped(&stopped("writer", &panic));
    }
}

/// Runs the follower. If it panics, nobody looks any more at what others write: say so too.
async fn supervise_follower(replica: Replica) {
    let monitor = replica.monitor.clone();
    // A set, not a task of its own: it ends with the store.
    let mut following = JoinSet::new();
    following.spawn(replica.follow());
    if let Some(Err(panic)) = following.join_next().await {
        monitor.out_of_sight(&stopped("follower", &panic));
    }
}

fn stopped(part: &str, panic: &JoinError) -> LogError {
    let detail = format!("the {part} stopped ({panic}): restart the service and report this");
    LogError::new(Fault::Stopped, detail)
}
