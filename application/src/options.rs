//! How a store is run.

use crate::{decision::WriteFormat, ports::DurabilityLevel, turns::Sharing};

/// How a store is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Who else may write to the log.
    pub sharing: Sharing,
    /// Which version of the format new commits are written in.
    pub write_format: WriteFormat,
    /// What the log must promise: while it promises less, nothing is written.
    pub required: DurabilityLevel,
}

impl Options {
    /// The defaults for a log that is shared like this.
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, write_format: WriteFormat::LikeTheLog, required: DurabilityLevel::Volatile }
    }
}
