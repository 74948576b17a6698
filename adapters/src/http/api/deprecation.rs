//! `getPet` is deprecated: every response says since when, when it will be removed, and what to use instead.

use axum::http::{HeaderName, HeaderValue, header::LINK};

/// The time of deprecation in Unix seconds (RFC 9745): 2025-12-05T00:00:00Z, five years before the removal.
const DEPRECATION: (HeaderName, HeaderValue) =
    (HeaderName::from_static("deprecation"), HeaderValue::from_static("@1764892800"));
/// The time of removal (RFC 8594).
const SUNSET: (HeaderName, HeaderValue) =
    (HeaderName::from_static("sunset"), HeaderValue::from_static("Thu, 05 Dec 2030 00:00:00 GMT"));
/// The replacement: the list with its filter.
const SUCCESSOR: (HeaderName, HeaderValue) =
    (LINK, HeaderValue::from_static(r#"</v1/pets>; rel="successor-version""#));

pub(crate) const HEADERS: [(HeaderName, HeaderValue); 3] = [DEPRECATION, SUNSET, SUCCESSOR];
