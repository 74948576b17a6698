//! What operators need: the probes, metrics, and the log as a stream.

pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod probes;
