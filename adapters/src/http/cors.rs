//! Which web pages may call the service from a browser. None, unless the operator names them.
//!
//! This is not tower-http's CORS layer: that one answers every `OPTIONS` request itself, before authentication and
//! instead of our own answer, which names the methods that the caller's key may use.

use std::str::FromStr;

use axum::{
    http::{
        HeaderMap, HeaderValue, Method, StatusCode, Uri,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
            VARY,
        },
        request::Parts,
    },
    response::{IntoResponse as _, Response},
};
use thiserror::Error;

/// The methods that do something here.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST");

/// What a page may send.
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Log-Position, Prefer, X-Request-Id, traceparent",
);

/// What a page may read beyond the few headers that every page may.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Link, ETag, Location, Log-Position, Preference-Applied, Retry-After, RateLimit, RateLimit-Policy, \
     Idempotency-Replayed, Deprecation, Sunset, X-Request-Id, WWW-Authenticate",
);

/// How long a browser may remember what it was allowed, in seconds: two hours, the longest that any of them does.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

const ANY: HeaderValue = HeaderValue::from_static("*");

/// The scheme, host and port of a web page, as browsers write it, or `*` for every page there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// A text that no browser would send as an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("expected http(s)://HOST[:PORT] in lower case and without a path, or *")]
pub struct InvalidOrigin;

/// What this request may be told about its page: the value that allows it, if it is allowed.
pub(super) fn allow(origins: &[Origin], headers: &HeaderMap) -> Option<HeaderValue> {
    if origins.is_empty() {
        return None;
    }
    let page = headers.get(ORIGIN)?;
    let allowed = origins.iter().find(|origin| origin.0 == ANY || origin.0 == page)?;
    Some(allowed.0.clone())
}

/// Adds to an answer what `allow` found. Caches must know that other pages may get other headers.
pub(super) fn announce(origins: &[Origin], allowed: Option<HeaderValue>, headers: &mut HeaderMap) {
    if origins.is_empty() {
        return;
    }
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(allowed) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
}

/// The answer to a browser that asks on behalf of an allowed page what the page may do. It tells nothing about
/// which addresses there are.
pub(super) fn preflight(request: &Parts, allowed: Option<&HeaderValue>) -> Option<Response> {
    let asks =
        request.method == Method::OPTIONS && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    (asks && allowed.is_some()).then(|| {
        let headers = [
            (ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
            (ACCESS_CONTROL_MAX_AGE, MAX_AGE),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    })
}

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        if text == "*" {
            return Ok(Self(ANY));
        }
        let uri: Uri = text.parse().map_err(|_| InvalidOrigin)?;
        let canonical = match (uri.scheme_str(), uri.authority()) {
            (Some(scheme @ ("http" | "https")), Some(host)) => format!("{scheme}://{host}"),
            (Some(_) | None, _) => return Err(InvalidOrigin),
        };
        let default_port = canonical.starts_with("http:") && canonical.ends_with(":80")
            || canonical.starts_with("https:") && canonical.ends_with(":443");
        let as_browsers_write_it = canonical == text && !default_port && !text.contains('@');
        if as_browsers_write_it && text == text.to_ascii_lowercase() {
            HeaderValue::try_from(text).map(Self).map_err(|_| InvalidOrigin)
        } else {
            Err(InvalidOrigin)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_write_it() {
        for text in [
            "*",
            "https://shop.example.com",
            "http://localhost:3000",
            "http://[::1]:8080",
            "https://a.b:8443",
        ] {
            assert_eq!(text.parse(), Ok(Origin(HeaderValue::from_static(text))));
        }
        for text in [
            "",
            "null",
            "shop.example.com",
            "https://shop.example.com/",
            "https://shop.example.com/a",
            "https://Shop.example.com",
            "https://shop.example.com:443",
            "http://shop.example.com:80",
            "https://a@shop.example.com",
            "https://*.example.com/",
            "file://x",
            "https://a, https://b",
        ] {
            assert_eq!(text.parse::<Origin>(), Err(InvalidOrigin), "{text}");
        }
    }

    #[test]
    fn only_named_pages_are_allowed() {
        let page = |origin| HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
        let origins = ["https://a.example", "https://b.example"].map(|text| text.parse().unwrap());
        assert_eq!(
            allow(&origins, &page("https://b.example")),
            Some(HeaderValue::from_static("https://b.example"))
        );
        for other in ["https://c.example", "http://a.example", "https://a.example:8443", "null", "*"] {
            assert_eq!(allow(&origins, &page(other)), None, "{other}");
        }
        assert_eq!(allow(&origins, &HeaderMap::new()), None);
        assert_eq!(allow(&[], &page("https://a.example")), None);
        assert_eq!(allow(&[Origin(ANY)], &page("https://c.example")), Some(ANY));
    }
}
