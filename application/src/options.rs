//! How a store is run.

use crate::{decision::WriteFormat, turns::Sharing};

/// How a store is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Who else may write to the log.
    pub sharing: Sharing,
    /// Which version of the format new commits are written in.
    pub write_format: WriteFormat,
    /// How many pets there may be before no more are added, if there is a limit.
    pub pets_max: Option<usize>,
}

impl Options {
    /// The defaults for a log that is shared like this.
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, write_format: WriteFormat::LikeTheLog, pets_max: None }
    }
}
