//! The content of the log: commits, their bytes, their order, and the rules that every engine must follow.

pub mod codec;
pub mod commit;
#[cfg(feature = "contract")]
pub mod contract;
pub(crate) mod digest;
pub(crate) mod history;
pub(crate) mod position;
