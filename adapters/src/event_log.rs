//! Engines that keep the log: each stores the same bytes and looks inside nothing.

mod disk;
mod distrust;
#[cfg(any(feature = "nats", feature = "postgres"))]
mod environment;
mod high_water;
#[cfg(any(feature = "nats", feature = "postgres"))]
mod loopback;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sled;
mod space;
#[cfg(feature = "sqlite")]
pub mod sqlite;
