//! Engines that keep the log: each stores the same bytes and looks inside nothing.

mod high_water;
pub mod memory;
pub mod sled;
