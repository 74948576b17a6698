//! The options of a running store.

use crate::{decision::WriteFormat, turns::Sharing};

/// The options of a running store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Who else may write to the log.
    pub sharing: Sharing,
    /// Which version of the format new commits are written in.
    pub write_format: WriteFormat,
}

impl Options {
    /// The defaults for a log that is shared like this.
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, write_format: WriteFormat::LikeTheLog }
    }
}
