//! CORS: the web pages that may call the service from a browser. None, unless the operator names them.
//!
//! tower-http's `CorsLayer` would respond to every `OPTIONS` request before authentication.

use std::sync::LazyLock;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};

use crate::http::{METHODS, settings::Origin};

/// The methods that a page may use.
static ALLOWED_METHODS: LazyLock<HeaderValue> = LazyLock::new(|| {
    let methods = METHODS.each_ref().map(Method::as_str).join(", ");
    HeaderValue::try_from(methods).expect("method names are plain ASCII")
});

/// The request headers that a page may set.
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Log-Position, X-Request-Id, traceparent",
);

/// The response headers that a page may read in addition to the CORS-safelisted ones.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Link, Total-Count, ETag, Location, Log-Position, Retry-After, RateLimit, RateLimit-Policy, \
     Idempotency-Replayed, Deprecation, Sunset, X-Request-Id, WWW-Authenticate",
);

/// How long a browser may cache a preflight, in seconds: two hours, the most that Chromium accepts.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The value of `Access-Control-Allow-Origin` for a request, if its page is an allowed one.
pub(crate) fn allowed_origin(origins: &[Origin], headers: &HeaderMap) -> Option<HeaderValue> {
    let page = headers.get(header::ORIGIN)?;
    let allowed = origins.iter().find(|origin| origin.0 == "*" || origin.0 == page)?;
    Some(allowed.0.clone())
}

/// Adds the CORS headers to a response. `Vary` tells caches that these headers depend on the page.
pub(crate) fn add_headers(origins: &[Origin], allowed: Option<&HeaderValue>, headers: &mut HeaderMap) {
    if origins.is_empty() {
        return;
    }
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    if let Some(allowed) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed.clone());
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
}

/// The response to the preflight of an allowed page: the same for every path, so that it does not reveal which exist.
pub(crate) fn preflight(request: &Request, allowed: Option<&HeaderValue>) -> Option<Response> {
    let is_preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    (is_preflight && allowed.is_some()).then(|| {
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS.clone()),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
            (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    })
}
