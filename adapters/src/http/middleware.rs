//! Everything that is the same for all requests: the middleware `observe` and its parts.

pub(crate) mod client_address;
pub(crate) mod cors;
pub(crate) mod framing;
pub(crate) mod observe;
pub(crate) mod rate_limit;
pub(crate) mod request_id;
pub(crate) mod request_log;
pub(crate) mod request_metrics;
