//! The limits of the HTTP API: how large a body may be, and how much one client may do.

use std::time::Duration;

use super::middleware::client_address::TrustedProxy;
use crate::access::RateLimit;

/// Maximum size of a request body, in bytes. A pet takes less than 2 KiB.
pub(super) const BODY_MAX: usize = 64 * 1024;

/// How long a request waits for its `Log-Position`.
pub(super) const LOG_POSITION_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits per client address. None by default.
#[derive(Debug, Clone, Default)]
pub struct ClientLimits {
    /// The rate of invalid keys that get 401; above it, they get 429.
    pub failed_auth: Option<RateLimit>,
    /// Proxies whose forwarding headers are trusted.
    pub trusted_proxies: Vec<TrustedProxy>,
}
