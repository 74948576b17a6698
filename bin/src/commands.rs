//! What the program can be told to do, one file each.

pub(crate) mod keys;
pub(crate) mod log;
pub(crate) mod openapi;
pub(crate) mod serve;
