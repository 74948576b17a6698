//! The options of a store.

use tokio::sync::watch;

use crate::{
    log::commit::NodeId,
    ports::{DurabilityLevel, LogIdentity, Position},
};

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
