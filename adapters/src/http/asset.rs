//! Files that are the same for all clients: kept in memory, with an entity tag, and compressed for clients
//! that accept gzip.

use std::{io::Read as _, sync::OnceLock};

use axum::{
    body::Bytes,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::{IntoResponse as _, Response},
};
use flate2::read::GzDecoder;

use super::etag::EntityTag;

/// For a file that may change with the program: ask each time.
pub(super) const REVALIDATED: HeaderValue = HeaderValue::from_static("no-cache");
/// For a file whose address changes with its content.
pub(super) const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// One file.
pub(super) struct Asset {
    headers: HeaderMap,
    gzipped: Option<Variant>,
    /// Unpacked when the first client asks for that; browsers never do.
    plain: OnceLock<Variant>,
    /// What clients get instead that ask for HTML.
    page: Option<Box<Asset>>,
}

struct Variant {
    bytes: Bytes,
    tag: EntityTag,
}

impl Asset {
    /// A file that is stored as it is.
    pub(super) fn plain(media_type: &'static str, caching: HeaderValue, content: impl Into<Bytes>) -> Self {
        let headers = [(CONTENT_TYPE, HeaderValue::from_static(media_type)), (CACHE_CONTROL, caching)];
        let plain = Variant::new(content.into()).into();
        Self { headers: headers.into_iter().collect(), gzipped: None, plain, page: None }
    }

    /// A file that is stored gzipped.
    pub(super) fn gzipped(media_type: &'static str, caching: HeaderValue, packed: &'static [u8]) -> Self {
        let gzipped = Some(Variant::new(Bytes::from_static(packed)));
        let asset = Self { gzipped, plain: OnceLock::new(), ..Self::plain(media_type, caching, "") };
        asset.with_headers([(VARY, HeaderValue::from_static("Accept-Encoding"))])
    }

    /// The same file, sent with these headers too.
    pub(super) fn with_headers<const N: usize>(mut self, headers: [(HeaderName, HeaderValue); N]) -> Self {
        self.headers.extend(headers);
        self
    }

    /// The same file for programs; browsers get `page` at the same address.
    pub(super) fn or_page(mut self, mut page: Self) -> Self {
        for asset in [&mut self, &mut page] {
            asset.headers.append(VARY, HeaderValue::from_static("Accept"));
        }
        self.page = Some(Box::new(page));
        self
    }

    /// The file, or 304 for those who hold it.
    pub(super) fn answer(&self, request: &HeaderMap) -> Response {
        if let Some(page) = self.page.as_ref().filter(|_| prefers_html(request)) {
            return page.answer(request);
        }
        let mut headers = self.headers.clone();
        let variant = match &self.gzipped {
            Some(gzipped) if accepts_gzip(request) => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                gzipped
            }
            Some(gzipped) => self.plain.get_or_init(|| gzipped.unpacked()),
            None => self.plain.get().expect("what is not stored gzipped is stored plain"),
        };
        variant.tag.clone().insert(&mut headers);
        if variant.tag.is_held(request) {
            (StatusCode::NOT_MODIFIED, headers).into_response()
        } else {
            (headers, variant.bytes.clone()).into_response()
        }
    }
}

impl Variant {
    fn new(bytes: Bytes) -> Self {
        Self { tag: EntityTag::of_file(&bytes), bytes }
    }

    fn unpacked(&self) -> Self {
        let mut plain = Vec::new();
        GzDecoder::new(&*self.bytes).read_to_end(&mut plain).expect("the file was packed when it was stored");
        Self::new(plain.into())
    }
}

/// Who does not say so may not be able to unpack it.
fn accepts_gzip(request: &HeaderMap) -> bool {
    ["gzip", "*"].iter().any(|coding| weight(request, &ACCEPT_ENCODING, coding) > 0.0)
}

/// Whether the client asks for HTML by name, as browsers do, and not for JSON before it. `*/*` is no wish for a page.
fn prefers_html(request: &HeaderMap) -> bool {
    let html = weight(request, &ACCEPT, "text/html");
    html > 0.0 && html >= weight(request, &ACCEPT, "application/json")
}

/// How much the client wants what a list of preferences calls `wanted`: 0 is not at all.
fn weight(request: &HeaderMap, list: &HeaderName, wanted: &str) -> f32 {
    let lists = request.get_all(list).iter().filter_map(|value| value.to_str().ok());
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

    fn request(codings: &[&'static str]) -> HeaderMap {
        codings.iter().map(|coding| (ACCEPT_ENCODING, HeaderValue::from_static(coding))).collect()
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        for codings in [&["gzip"][..], &["br, gzip;q=0.5"], &["GZIP"], &["*"], &["br", "gzip"]] {
            assert!(accepts_gzip(&request(codings)), "{codings:?}");
        }
        for codings in
            [&[][..], &[""], &["identity"], &["gzip;q=0"], &["gzip; Q=0.000"], &["br"], &["x-gzipped"]]
        {
            assert!(!accepts_gzip(&request(codings)), "{codings:?}");
        }
    }

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
