//! `getPet` is deprecated: every response says since when, when it will be removed, and what to use instead.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header::LINK};

/// Since when, as RFC 9745 wants it: 2025-12-05T00:00:00Z in Unix seconds, five years before the end.
const DEPRECATION: (HeaderName, HeaderValue) =
    (HeaderName::from_static("deprecation"), HeaderValue::from_static("@1764892800"));
/// Until when (RFC 8594).
const SUNSET: (HeaderName, HeaderValue) =
    (HeaderName::from_static("sunset"), HeaderValue::from_static("Thu, 05 Dec 2030 00:00:00 GMT"));
/// What to use instead: the list with its filter.
const SUCCESSOR: (HeaderName, HeaderValue) =
    (LINK, HeaderValue::from_static(r#"</v1/pets>; rel="successor-version""#));

/// Adds the headers.
pub(crate) fn announce(headers: &mut HeaderMap) {
    headers.extend([DEPRECATION, SUNSET, SUCCESSOR]);
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;

    #[test]
    fn the_removal_is_announced_five_years_ahead() {
        let seconds = DEPRECATION.1.to_str().unwrap().strip_prefix('@').unwrap().parse().unwrap();
        let since: DateTime<Utc> = DateTime::from_timestamp(seconds, 0).unwrap();
        assert_eq!(since.to_rfc3339(), "2025-12-05T00:00:00+00:00");
        let until = DateTime::parse_from_rfc2822(SUNSET.1.to_str().unwrap()).unwrap();
        assert_eq!(until.to_rfc3339(), "2030-12-05T00:00:00+00:00");
    }
}
