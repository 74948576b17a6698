//! Engines that keep the log: each stores the same bytes and looks inside nothing.

mod high_water;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
pub mod sled;
