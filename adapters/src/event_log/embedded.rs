//! What the embedded engines share.

pub(crate) mod failed_sync;
pub(crate) mod high_water;
pub(crate) mod space;
