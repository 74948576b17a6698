//! Engines that keep the log: each stores the same bytes and looks inside nothing.

mod disk;
mod embedded;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(planted_bugs)]
pub mod planted;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sled;
#[cfg(feature = "sqlite")]
pub mod sqlite;
