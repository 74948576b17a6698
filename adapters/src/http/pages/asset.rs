//! Files that are the same for all clients: in memory, with an entity tag.

use axum::{
    body::Bytes,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG},
    },
    response::{IntoResponse as _, Response},
};

use crate::http::{
    api::conditional::{file_tag, is_not_modified, require_match},
    error::ApiError,
};

pub(crate) struct Asset {
    headers: HeaderMap,
    bytes: Bytes,
}

impl Asset {
    /// A file that may change with the binary, so clients revalidate it each time.
    pub(crate) fn new(media_type: &'static str, content: impl Into<Bytes>) -> Self {
        let (bytes, caching) = (content.into(), HeaderValue::from_static("no-cache"));
        let media_type = HeaderValue::from_static(media_type);
        let headers = [(CONTENT_TYPE, media_type), (CACHE_CONTROL, caching), (ETAG, file_tag(&bytes))];
        Self { headers: headers.into_iter().collect(), bytes }
    }

    pub(crate) fn with_headers<const N: usize>(mut self, headers: [(HeaderName, HeaderValue); N]) -> Self {
        for (name, value) in headers {
            self.headers.insert(name, value);
        }
        self
    }

    /// The file, 304 for clients that have it, or 412 for clients that ask for a different version.
    pub(crate) fn respond(&self, request: &HeaderMap) -> Result<Response, ApiError> {
        let tag = &self.headers[ETAG];
        require_match(request, tag)?;
        if is_not_modified(request, tag) {
            return Ok((StatusCode::NOT_MODIFIED, self.headers.clone()).into_response());
        }
        Ok((self.headers.clone(), self.bytes.clone()).into_response())
    }
}

/// Whether the client asks for HTML by name, as browsers do, and does not prefer JSON. `*/*` does not count.
pub(crate) fn prefers_html(request: &HeaderMap) -> bool {
    let html = weight(request, "text/html");
    html > 0.0 && html >= weight(request, "application/json")
}

/// The weight of a media type in `Accept`; 0 if it is absent or excluded.
fn weight(request: &HeaderMap, wanted: &str) -> f32 {
    let lists = request.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let weights = lists.flat_map(|list| list.split(',')).filter_map(|item| {
        let mut parts = item.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(wanted));
        let weight = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.trim_start().strip_prefix('='));
        named.then(|| weight.map_or(1.0, |weight| weight.trim().parse().unwrap_or(0.0)))
    });
    weights.fold(0.0, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_for_clients_that_ask_for_html() {
        let request = |accept: &'static str| {
            [(ACCEPT, HeaderValue::from_static(accept))].into_iter().collect::<HeaderMap>()
        };
        for accept in [
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "TEXT/HTML; q=0.5",
            "application/json;q=0.5, text/html;q=0.5",
        ] {
            assert!(prefers_html(&request(accept)), "{accept}");
        }
        for accept in [
            "*/*",
            "",
            "application/json",
            "text/*",
            "text/html;q=0",
            "text/html;q=0.5, application/json",
            "text/html;q=much",
        ] {
            assert!(!prefers_html(&request(accept)), "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()), "a client that says nothing");
    }
}
