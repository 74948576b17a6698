//! The request log: a line for each rejected or failed request, or for every request. The rate and the size of lines about
//! rejected requests are limited, because unauthenticated clients can cause them.

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

use super::request_id::{X_REQUEST_ID, trace_id};
use crate::{
    access::{RejectedKey, api_keys::KEY_PREFIX},
    http::{error::ApiError, request_context::RequestContext, settings::HttpSettings},
};

/// Maximum rate of lines of one kind, after a burst. With [`TEXT_MAX`], a flood of one kind writes less than 1 GB per day.
const LINES_PER_SECOND_MAX: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");
const BURST_MAX: NonZeroU32 = NonZeroU32::new(100).expect("a hundred is not zero");

/// The interval at which the number of suppressed lines is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of bytes of a text from a client in a line, after escaping.
const TEXT_MAX: usize = 200;

/// A shorter text after the prefix of keys is no key.
const SECRET_MIN: usize = 8;

pub(crate) struct RequestLog {
    /// Whether every request is logged, without a limit on the rate.
    logs_all: bool,
    without_key: Budget,
    wrong_key: Budget,
    valid_key: Budget,
    failed: Budget,
}

/// The limit on the rate of one kind of lines, so that a flood of another kind does not suppress them.
struct Budget {
    kind: &'static str,
    limiter: DefaultDirectRateLimiter,
    /// Lines suppressed since the last report.
    suppressed: Arc<AtomicU64>,
}

impl RequestLog {
    pub(crate) fn new(settings: &HttpSettings) -> Self {
        let [without_key, wrong_key, valid_key, failed] =
            ["without_key", "wrong_key", "valid_key", "failed"].map(Budget::new);
        Self { logs_all: settings.access_log, without_key, wrong_key, valid_key, failed }
    }

    /// Logs a request, if it is one of those that are logged.
    pub(crate) fn record(&self, context: &RequestContext, response: &Response, took: Duration) {
        let event = match response.status().as_u16() {
            ..400 if !self.logs_all => return,
            ..400 => "request completed",
            400..500 => "request rejected",
            500.. => "request failed",
        };
        let error = response.extensions().get::<ApiError>();
        let is_failure = error.is_some_and(ApiError::is_failure);
        let rejected = error.and_then(ApiError::rejected_key);
        let accepted = context.principal().map(|principal| (&principal.id, &*principal.name));
        let budget = match (rejected, accepted) {
            _ if is_failure => &self.failed,
            (Some(_), _) => &self.wrong_key,
            (None, Some(_)) => &self.valid_key,
            (None, None) => &self.without_key,
        };
        if !self.logs_all && !budget.admits() {
            return;
        }
        let id = response.headers().get(X_REQUEST_ID).map(|id| shortened(id.as_bytes()));
        let (key, key_name) = accepted.or(rejected.and_then(RejectedKey::key)).unzip();
        let user_agent = context.user_agent.as_ref().map(|agent| shortened(agent.as_bytes()));
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "petstore::http",
                    request = id.as_deref(),
                    route = context.route,
                    method = &*shortened(context.method.as_str().as_bytes()),
                    path = &*shortened(context.uri.path().as_bytes()),
                    status = response.status().as_u16(),
                    code = error.map(|error| error.kind().1),
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
        if is_failure {
            log!(warn);
        } else {
            log!(info);
        }
    }

    /// Logs a request that the HTTP parser rejected. Only the address of the peer is known.
    pub(crate) fn record_unparsed(&self, peer: IpAddr, error: &str) {
        if self.logs_all || self.without_key.admits() {
            tracing::info!(target: "petstore::http", client = %peer, error, "invalid HTTP request rejected");
        }
    }
}

impl Budget {
    fn new(kind: &'static str) -> Self {
        let quota = Quota::per_second(LINES_PER_SECOND_MAX).allow_burst(BURST_MAX);
        Self { kind, limiter: RateLimiter::direct(quota), suppressed: Arc::default() }
    }

    /// Whether the limit admits a line. The first suppressed line schedules a report of their number.
    fn admits(&self) -> bool {
        let is_admitted = self.limiter.check().is_ok();
        if !is_admitted && self.suppressed.fetch_add(1, Relaxed) == 0 {
            let (kind, suppressed) = (self.kind, self.suppressed.clone());
            tokio::spawn(async move {
                time::sleep(REPORT_INTERVAL).await;
                let suppressed = suppressed.swap(0, Relaxed);
                tracing::warn!(target: "petstore::http", kind, suppressed, "request log rate limit reached");
            });
        }
        is_admitted
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
    let mut shown = shown.replace(changes_the_line, "\u{fffd}");
    let mut size = 0;
    let end = shown.char_indices().find(|(_, character)| {
        size += character.escape_debug().map(char::len_utf8).sum::<usize>();
        size > TEXT_MAX
    });
    shown.truncate(end.map_or(shown.len(), |(end, _)| end));
    shown
}

/// Control characters, and those that reorder a text or break its line.
fn changes_the_line(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
