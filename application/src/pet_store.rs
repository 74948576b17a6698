//! The use cases: list, create, get.

use std::{sync::Arc, time::Duration};

use domain::{IdsExhausted, NewPet, Pet, PetId};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinError, JoinHandle, JoinSet},
    time,
};

use crate::{
    follower::Follower,
    health::{Health, Monitor},
    idempotency::RequestKey,
    page::{ListPets, Page},
    ports::{Clock, Durability, EventLog, Fault, LogError, Position, ReadModel, Version},
    principal::KeyId,
    projection::Projection,
    writer::{Request, Writer},
};

/// The pet store of one node: reads from memory, writes through the one writer.
pub struct PetStore {
    node: Follower,
    requests: mpsc::Sender<Request>,
    writer: JoinHandle<()>,
    /// The follower of a shared log, if there is one; it ends with the store.
    following: JoinSet<()>,
}

/// Who else may write to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody: the engine keeps others out.
    Alone,
    /// Other nodes: their commits are followed.
    Shared,
}

/// Asks for a pet to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatePet {
    /// What is told about it.
    pub pet: NewPet,
    /// The API key that asks.
    pub by: KeyId,
    /// Makes the request safe to repeat.
    pub request_key: Option<RequestKey>,
}

/// A pet that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The pet with its id.
    pub pet: Pet,
    /// Whether an earlier request with the same key added it.
    pub replayed: bool,
}

/// Why a pet was not added, named by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CreateError {
    /// Too many wait already: come back in a moment.
    #[error("too many requests are waiting")]
    Busy,
    /// Nothing can be written for now. The pet may still appear if the answer of the log was lost.
    #[error("{0}")]
    Unavailable(Fault),
    /// The request key was used for another pet: choose a new one.
    #[error("the key was used for another pet")]
    RequestKeyReused,
    /// No more pets fit into this inventory.
    #[error(transparent)]
    IdsExhausted(#[from] IdsExhausted),
}

/// The position was not reached in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this node has not applied that position yet")]
pub struct NotCaughtUp;

impl PetStore {
    /// How many requests may wait for the writer. Four full commits: more would only wait longer.
    pub const QUEUE_MAX: usize = 4_096;
    /// How long a caller waits for its pet to be durable.
    pub const WRITE_PATIENCE: Duration = Duration::from_secs(5);

    /// Replays the log into the read model and starts the writer.
    pub async fn open(
        log: Arc<dyn EventLog>,
        read_model: Arc<dyn ReadModel>,
        clock: Arc<dyn Clock>,
        sharing: Sharing,
    ) -> Result<Self, LogError> {
        let projection = Arc::new(Projection::new(read_model));
        let node = Follower::new(log, projection);
        node.catch_up().await?;
        let (requests, queue) = mpsc::channel(Self::QUEUE_MAX);
        let writer = Writer::new(node.clone(), clock, queue, sharing);
        let writer = tokio::spawn(supervise_writer(writer, node.monitor.clone()));
        let mut following = JoinSet::new();
        match sharing {
            Sharing::Alone => {}
            Sharing::Shared => {
                following.spawn(supervise_follower(node.clone()));
            }
        }
        Ok(Self { node, requests, writer, following })
    }

    /// One page of pets.
    pub fn list(&self, query: &ListPets) -> Result<Page, Fault> {
        self.readable()?;
        Ok(self.node.projection.read_model().list(query))
    }

    /// One pet.
    pub fn get(&self, id: PetId) -> Result<Option<Pet>, Fault> {
        self.readable()?;
        Ok(self.node.projection.read_model().get(id))
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
        let mut positions = self.node.projection.positions();
        let reached = positions.wait_for(|applied| *applied >= position);
        match time::timeout(patience, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotCaughtUp),
        }
    }

    /// The last commit that readers see.
    pub fn version(&self) -> Version {
        self.node.projection.read_model().version()
    }

    /// How many pets there are.
    pub fn count(&self) -> usize {
        self.node.projection.read_model().count()
    }

    /// How many creates wait for the writer.
    pub fn waiting(&self) -> usize {
        Self::QUEUE_MAX - self.requests.capacity()
    }

    /// What this node can do right now.
    pub fn health(&self) -> Health {
        self.node.monitor.now()
    }

    /// What the log promises about an answered create.
    pub fn durability(&self) -> Durability {
        self.node.log.durability()
    }

    /// Lets go of the log. Nobody waits for an answer any more, so what is still in doubt stays so.
    pub async fn close(self) {
        drop((self.following, self.requests));
        // A panic of the writer was reported when it happened.
        let _ = self.writer.await;
    }

    fn readable(&self) -> Result<(), Fault> {
        self.node.monitor.reads().map_or(Ok(()), |error| Err(error.fault))
    }
}

/// Runs the writer. If it panics, nobody is left to write: say so instead of dying silently.
async fn supervise_writer(writer: Writer, monitor: Arc<Monitor>) {
    if let Err(panic) = tokio::spawn(writer.run()).await {
        monitor.writes_stopped(&stopped("writer", &panic));
    }
}

/// Runs the follower. If it panics, nobody looks any more at what others write: say so too.
async fn supervise_follower(node: Follower) {
    let monitor = node.monitor.clone();
    // A set, not a task of its own: it ends with the store.
    let mut following = JoinSet::new();
    following.spawn(node.follow());
    if let Some(Err(panic)) = following.join_next().await {
        monitor.out_of_sight(&stopped("follower", &panic));
    }
}

fn stopped(part: &str, panic: &JoinError) -> LogError {
    let detail = format!("the {part} stopped ({panic}): restart the service and report this");
    LogError::new(Fault::Stopped, detail)
}
