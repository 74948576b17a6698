//! The commands, one file each.

pub(crate) mod completions;
pub(crate) mod health;
pub(crate) mod keys;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod openapi;
pub(crate) mod serve;
