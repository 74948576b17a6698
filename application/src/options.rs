//! The options of a running store.

use crate::ports::{DurabilityLevel, LogIdentity};

/// The options of a running store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Which nodes may write to the log.
    pub access: LogAccess,
    /// What the log must promise: while it promises less, nothing is written.
    pub required: DurabilityLevel,
    /// The log that this store had before, if it had one. A log that does not hold its newest commit is rejected.
    pub known: Option<LogIdentity>,
    /// How many pets there may be before no more are added, if there is a limit.
    pub pets_max: Option<usize>,
}

impl Options {
    /// The defaults for a log that is shared like this.
    pub fn new(access: LogAccess) -> Self {
        Self { access, required: DurabilityLevel::Volatile, known: None, pets_max: None }
    }
}

/// Which nodes may write to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogAccess {
    /// Only this node: the engine keeps others out.
    Exclusive,
    /// Other nodes too: their commits are followed.
    Shared,
}
