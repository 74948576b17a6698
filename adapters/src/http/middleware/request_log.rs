//! The request log: a line for each rejected or failed request, or for every request. The rate of lines about rejected
//! requests is limited, because unauthenticated clients can cause them.

use std::{
    net::IpAddr,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::response::Response;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::time;

use super::{
    observe::RequestContext,
    request_id::{X_REQUEST_ID, trace_id},
};
use crate::http::{error::ApiError, settings::HttpSettings};

/// Maximum rate of lines about rejected requests: too low to fill a disk.
const LINES_PER_SECOND_MAX: NonZeroU32 = NonZeroU32::new(50).expect("fifty is not zero");

/// The interval at which the number of suppressed lines is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of bytes of a text from a client.
const TEXT_MAX: usize = 200;

/// The prefix of API keys.
const KEY_PREFIX: &str = "petstore_";
/// A shorter text after the prefix is no key.
const SECRET_MIN: usize = 8;

pub(crate) struct RequestLog {
    /// Whether every request is logged, without a limit on the rate.
    logs_all: bool,
    limiter: DefaultDirectRateLimiter,
    /// Lines suppressed since the last report.
    suppressed: Arc<AtomicU64>,
}

impl RequestLog {
    pub(crate) fn new(settings: &HttpSettings) -> Self {
        let limiter = RateLimiter::direct(Quota::per_second(LINES_PER_SECOND_MAX));
        Self { logs_all: settings.access_log, limiter, suppressed: Arc::default() }
    }

    /// Logs a request, if it is one of those that are logged.
    pub(crate) fn record(&self, context: &RequestContext, response: &Response, took: Duration) {
        let event = match response.status().as_u16() {
            ..400 if !self.logs_all => return,
            ..400 => "request completed",
            400..500 => "request rejected",
            500.. => "request failed",
        };
        if self.may_write() {
            write(context, response, took, event);
        }
    }

    /// Logs a request that the HTTP parser rejected. Only the address of the peer is known.
    pub(crate) fn record_unparsed(&self, peer: IpAddr, error: &str) {
        if self.may_write() {
            tracing::info!(target: "petstore::http", client = %peer, error, "invalid HTTP request rejected");
        }
    }

    /// Whether the rate limit admits a line. The first suppressed line schedules a report of their number.
    fn may_write(&self) -> bool {
        let is_admitted = self.logs_all || self.limiter.check().is_ok();
        if !is_admitted && self.suppressed.fetch_add(1, Relaxed) == 0 {
            let suppressed = self.suppressed.clone();
            tokio::spawn(async move {
                time::sleep(REPORT_INTERVAL).await;
                let suppressed = suppressed.swap(0, Relaxed);
                tracing::warn!(target: "petstore::http", suppressed, "request log rate limit reached");
            });
        }
        is_admitted
    }
}

fn write(context: &RequestContext, response: &Response, took: Duration, event: &str) {
    let id = response.headers().get(X_REQUEST_ID).map(|id| shortened(id.as_bytes()));
    let error = response.extensions().get::<ApiError>();
    let rejected = error.and_then(ApiError::rejected_key);
    let accepted = context.principal().map(|principal| (&principal.id, &*principal.name));
    let (key, key_name) = accepted.or(rejected.and_then(|rejected| rejected.key())).unzip();
    let user_agent = context.user_agent.as_ref().map(|agent| shortened(agent.as_bytes()));
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                target: "petstore::http",
                request = id.as_deref(),
                route = context.route(),
                method = &*shortened(context.method.as_str().as_bytes()),
                path = &*shortened(context.uri.path().as_bytes()),
                status = response.status().as_u16(),
                code = error.map(ApiError::code),
                error = error.map(|error| shortened(error.to_string().as_bytes())).as_deref(),
                reason = error.and_then(ApiError::auth_failure),
                key = key.map(display),
                key_name,
                client = %context.client_address,
                user_agent = user_agent.as_deref(),
                trace_id = context.traceparent.as_ref().and_then(trace_id),
                micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                "{event}"
            )
        };
    }
    // A probe that reports "not ready" has not failed: it is no error.
    if response.status().is_server_error() && error.is_some() {
        log!(warn);
    } else {
        log!(info);
    }
}

/// The beginning of a text from a client, without API keys and without characters that could change how the rest of the
/// line is displayed.
pub(super) fn shortened(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_MAX)]);
    let mut parts = text.split(KEY_PREFIX);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let secret = part.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let (hidden, rest) = if secret < SECRET_MIN { ("", part) } else { ("***", &part[secret..]) };
        shown.extend([KEY_PREFIX, hidden, rest]);
    }
    shown.replace(changes_the_line, "\u{fffd}")
}

/// Control characters, and those that reorder a text or break its line.
fn changes_the_line(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
