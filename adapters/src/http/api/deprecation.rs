//! Deprecated operations: every response says since when, when it will be removed, and what to use instead. Calls are
//! counted by key, so that operators see which clients still use it.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, header::LINK},
    middleware::Next,
    response::Response,
};

use crate::http::{app_state::AppState, middleware::observe::RequestContext};

/// Since when, as RFC 9745 wants it: 2025-12-05T00:00:00Z in Unix seconds, five years before the end.
const DEPRECATION: (HeaderName, HeaderValue) =
    (HeaderName::from_static("deprecation"), HeaderValue::from_static("@1764892800"));
/// Until when (RFC 8594).
const SUNSET: (HeaderName, HeaderValue) =
    (HeaderName::from_static("sunset"), HeaderValue::from_static("Thu, 05 Dec 2030 00:00:00 GMT"));
/// What to use instead: the list with its filter.
const SUCCESSOR: (HeaderName, HeaderValue) =
    (LINK, HeaderValue::from_static(r#"</v1/pets>; rel="successor-version""#));

pub(crate) const HEADERS: [(HeaderName, HeaderValue); 3] = [DEPRECATION, SUNSET, SUCCESSOR];

/// The layer of a deprecated route.
pub(crate) async fn mark(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let context = RequestContext::of(request.extensions());
    if let Some(principal) = context.principal() {
        state.metrics.record_deprecated_call(context.route(), &principal.name);
    }
    let mut response = next.run(request).await;
    response.headers_mut().extend(HEADERS);
    response
}
