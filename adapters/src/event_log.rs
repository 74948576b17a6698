//! Engines that keep the log: each stores the same bytes and looks inside nothing.

pub mod memory;
