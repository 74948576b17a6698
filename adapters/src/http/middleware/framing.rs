//! Rejects requests whose host or length is ambiguous, because a proxy in front could read them differently (request
//! smuggling).

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody as _},
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, Version,
        header::{EXPECT, HOST, TRANSFER_ENCODING},
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use crate::{
    http::{
        app_state::AppState, authentication::has_valid_key, error::ApiError, request_context::RequestContext,
        settings::DRAIN_MAX,
    },
    loopback::is_loopback,
};

/// Rejects an ambiguous request. HTTP/1.0 requests need no `Host`.
pub(crate) fn check(request: &Request) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    Err(ApiError::invalid(match (hosts.next(), hosts.next()) {
        _ if !is_coding_clear(request.headers()) => "Transfer-Encoding must be exactly chunked",
        _ if request.version() == Version::HTTP_2 && !is_authority_clear(request) => {
            ":authority must be a valid host, and match Host if both are sent"
        }
        (Some(host), None) if is_host(host.as_bytes()) => return Ok(()),
        (Some(_), _) => "there must be exactly one Host header, and it must name a valid host",
        (None, _) if request.version() == Version::HTTP_11 => "a Host header is required",
        (None, _) => return Ok(()),
    }))
}

fn is_authority_clear(request: &Request) -> bool {
    let Some(authority) = request.uri().authority().map(Authority::as_str) else { return true };
    let hosts = request.headers().get_all(HOST);
    is_host(authority.as_bytes())
        && hosts.iter().all(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()))
}

/// Rejects a request without a key that is for another host. A web page can let its own name resolve to this machine
/// (DNS rebinding), and could read what needs no key here. Browsers always send a `Host`; some probes do not.
pub(crate) async fn require_local_host(
    State(state): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    // A URL in the request line can name a host too.
    let hosts = [host, request.uri().authority().cloned()];
    if hosts.iter().flatten().all(|host| is_loopback(host.host()))
        || has_valid_key(&state, request.headers(), RequestContext::of(request.extensions()))
    {
        return next.run(request).await;
    }
    let rule = "Host must be localhost, 127.0.0.1 or [::1], unless the request has an API key";
    ApiError::invalid(rule).into_response()
}

/// Whether an HTTP/1 body may be left unread after a rejection. The connection must then be closed.
pub(crate) fn body_may_remain(request: &Request<Body>) -> bool {
    request.version() < Version::HTTP_2
        && !request.body().is_end_stream()
        && (request.body().size_hint().lower() > DRAIN_MAX as u64
            || request.headers().contains_key(EXPECT)
            || !is_coding_clear(request.headers()))
}

/// Whether every proxy reads the same body: others may undo codings that this service does not know. The parser already
/// rejects a length next to a coding.
fn is_coding_clear(headers: &HeaderMap) -> bool {
    let chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    headers.get_all(TRANSFER_ENCODING).iter().enumerate().all(|(index, coding)| index == 0 && chunked(coding))
}

/// An empty host is valid (RFC 9110, section 7.2).
fn is_host(host: &[u8]) -> bool {
    host.is_empty() || Authority::try_from(host).is_ok_and(|authority| !authority.as_str().contains('@'))
}
