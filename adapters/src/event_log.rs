//! The storage engines, and the log of a running service (`remote`). All engines store the same bytes, and read at
//! most their envelope.

#[cfg(any(feature = "nats", feature = "postgres"))]
mod announced;
pub mod embedded;
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

use application::ports::{Durability, DurabilityLevel};

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

/// Looks up an environment variable that completes a store URL: a user, a password or a password file.
#[cfg(any(feature = "nats", feature = "postgres"))]
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable of this process. An empty one counts as unset.
#[cfg(any(feature = "nats", feature = "postgres"))]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The durability of a log that promises nothing itself, or whose promise is not known here.
fn volatile(engine: &'static str, promise: &str) -> Durability {
    Durability { engine, level: DurabilityLevel::Volatile, promise: promise.into(), settings: vec![] }
}
