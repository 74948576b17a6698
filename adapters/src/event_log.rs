//! The engines that store the log: all of them store the same bytes, and none interprets them.

pub mod embedded;
#[cfg(any(feature = "nats", feature = "postgres"))]
mod environment;
mod loopback;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod remote;
pub mod sled;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use application::ports::{AppendError, Fault, LogError, Record};

/// Refuses a record over the limit of an engine before anything of it is sent or written.
fn check_size(record: &Record, max: usize) -> Result<(), AppendError> {
    let size = record.bytes.len();
    if size <= max {
        return Ok(());
    }
    let detail = format!("a record of {size} bytes is over the limit of {max}");
    Err(AppendError::NotStored(LogError::new(Fault::TooLarge, detail)))
}

/// What to do when there is no log yet.
#[cfg(feature = "postgres")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Create it.
    Create,
    /// Fail, so that a tool that only looks creates nothing.
    Refuse,
}
