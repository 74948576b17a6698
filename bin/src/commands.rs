//! The commands.

pub(crate) mod documents;
pub(crate) mod health;
pub(crate) mod keys;
pub(crate) mod log;
pub(crate) mod serve;
