//! The limits of the HTTP port: how large a request may be, how long peers may take, and how much one client may do.

use std::time::Duration;

use application::RateLimit;

use super::client_address::TrustedProxy;

/// How many bytes the head of a request may have.
pub(super) const HEAD_MAX: usize = 16 * 1024;

/// How many header fields a request may have. HTTP/1 requests with more get what the parser answers to a head that is too
/// large.
pub(super) const HEADERS_MAX: usize = 64;

/// How many bytes of a body are read. A pet takes less than 2 KiB.
pub(super) const BODY_MAX: usize = 64 * 1024;

/// How many bytes of an unread body are taken off the wire after an error response. A client that is still sending
/// when the connection closes would see a broken pipe instead of the response.
pub(super) const DRAIN_MAX: u64 = 4 * 1024 * 1024;

/// How long that may take.
pub(super) const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// How many HTTP/2 requests may be open at once on one connection.
pub(super) const STREAMS_MAX: u32 = 128;

/// How much of a body an HTTP/2 peer may send before the service reads it: a whole one.
pub(super) const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all bodies of a connection together.
pub(super) const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// How many bytes of responses one connection may leave untaken before its requests get 503: a large page on each of
/// its streams.
pub(super) const UNSENT_PER_CONNECTION_MAX: usize = 4 * 1024 * 1024;

/// The same for all connections together, before every request gets 503.
pub(super) const UNSENT_MAX: usize = 64 * 1024 * 1024;

/// From here on, peers that take nothing of a response are closed after [`PRESSURE_TIMEOUT`].
pub(super) const PRESSURE: usize = UNSENT_MAX / 2;
pub(super) const PRESSURE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a request waits for the log position it asks for.
pub(super) const POSITION_PATIENCE: Duration = Duration::from_secs(1);

/// The limits that are counted by the address of the client. None by default.
#[derive(Debug, Clone, Default)]
pub struct ClientLimits {
    /// How many wrong keys get 401; those beyond get 429.
    pub failed_auth: Option<RateLimit>,
    /// Whose word about the addresses of clients is taken.
    pub trusted_proxies: Vec<TrustedProxy>,
}

/// The limits that an operator or a test may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How many connections may be open at once. One more takes the place of an idle one without a valid key, or gets 503.
    pub connections_max: usize,
    /// How many of them one client may have; one more gets 503. Does not apply to trusted proxies.
    pub connections_per_address: Option<usize>,
    /// How many connections that are one too many are told so at the same time. Others are closed without a word.
    pub refusals_max: usize,
    /// How long the head of a request may take, from its first byte, and the first byte of a connection.
    pub head_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
    /// How long a connection may stay open with nothing to do.
    pub idle_timeout: Duration,
    /// How long a peer may take nothing of what is sent to it.
    pub write_timeout: Duration,
    /// How long requests in flight may take to finish once the server is told to end.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address: None,
            refusals_max: 256,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// How long a request may be in flight: reading, working and writing may each take their time, but they end.
    pub(super) fn request_timeout(&self) -> Duration {
        self.body_timeout + self.idle_timeout + self.write_timeout
    }
}
