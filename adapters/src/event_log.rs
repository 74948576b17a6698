//! The storage engines, and the log of a running service (`remote`). All engines store the same bytes, and read at
//! most their envelope.

#[cfg(any(feature = "nats", feature = "postgres"))]
mod announced;
pub mod embedded;
#[cfg(any(feature = "nats", feature = "postgres"))]
mod environment;
mod loopback;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "s3")]
pub mod object_store;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod remote;
pub mod sled;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::sync::Arc;

use application::ports::{Durability, DurabilityLevel, LogError, LogSource, Position};

/// What a log is opened read-only for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPurpose {
    /// The records are used. An engine that holds them twice may read the faster copy.
    Use,
    /// The log is checked: the records are read from where they were appended.
    Verify,
    /// The log may be damaged, and what can be read of it is saved.
    Salvage,
}

/// The readable part of a log that may be damaged.
pub struct SalvagedLog {
    /// The records that can be read.
    pub log: Arc<dyn LogSource>,
    /// The last position that the log is known to have had.
    pub last_known: Position,
    /// Whether it is known where the log ended.
    pub end_is_known: bool,
}

impl SalvagedLog {
    /// Wraps a log whose engine stops reading at the first damage.
    pub async fn new(log: Arc<dyn LogSource>) -> Result<Self, LogError> {
        Ok(Self { last_known: log.head().await?, log, end_is_known: true })
    }
}

/// The durability of a log that promises nothing itself, or whose promise is not known here.
fn volatile(engine: &'static str, promise: &str) -> Durability {
    Durability { engine, level: DurabilityLevel::Volatile, promise: promise.into(), settings: vec![] }
}
