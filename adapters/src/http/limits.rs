//! The limits of the HTTP API: how large a body may be, and how much one client may do.

use std::time::Duration;

use super::middleware::client_address::TrustedProxy;
use crate::access::RateLimit;

/// How many bytes of a body are read. A pet takes less than 2 KiB.
pub(super) const BODY_MAX: usize = 64 * 1024;

/// How long a request waits for the log position it asks for.
pub(super) const LOG_POSITION_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits that are counted by the address of the client. None by default.
#[derive(Debug, Clone, Default)]
pub struct ClientLimits {
    /// How many wrong keys get 401; those beyond get 429.
    pub failed_auth: Option<RateLimit>,
    /// Whose word about the addresses of clients is taken.
    pub trusted_proxies: Vec<TrustedProxy>,
}
