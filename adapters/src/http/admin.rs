//! The admin listener: what operators read from a running service.

pub(super) mod metrics;
