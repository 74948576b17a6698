//! The limits of a listener that an operator or a test may choose.

use std::time::Duration;

/// Limits on connections and on the time that clients may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of open connections. At the limit, the oldest unauthenticated connection without a recent
    /// request is closed; if there is none, the new one gets 503.
    pub connections_max: usize,
    /// Maximum number of open connections per client address; further ones get 503. Does not apply to trusted
    /// proxies.
    pub connections_per_address: Option<usize>,
    /// Maximum number of rejected connections that are being sent a 503; further ones are closed without a response.
    pub rejections_max: usize,
    /// Timeout for the head of a request, from its first byte or from the beginning of the connection.
    pub head_timeout: Duration,
    /// Timeout for the body of a request.
    pub body_timeout: Duration,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// How long a client may stop reading a response.
    pub write_timeout: Duration,
    /// How long requests in flight may take to finish after the shutdown signal.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address: None,
            rejections_max: 256,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Maximum time for a whole request: reading, processing and writing.
    pub(super) fn request_timeout(&self) -> Duration {
        self.body_timeout + self.idle_timeout + self.write_timeout
    }
}
