//! Files that are the same for all clients: kept in memory, with an entity tag, and compressed for clients
//! that accept gzip.

use std::{io::Read as _, sync::OnceLock};

use axum::{
    body::{Body, Bytes},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::Response,
};
use flate2::read::GzDecoder;

use super::etag::EntityTag;

/// One file.
pub(super) struct Asset {
    headers: HeaderMap,
    content: Content,
    /// What clients get instead that ask for HTML.
    page: Option<Box<Asset>>,
}

/// How long browsers may keep a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Caching {
    /// It may change with the program: ask each time.
    Revalidated,
    /// Its address changes with its content.
    Immutable,
}

enum Content {
    Plain(Variant),
    /// Unpacked when the first client asks for that; browsers never do.
    Gzipped {
        packed: Variant,
        plain: OnceLock<Variant>,
    },
}

struct Variant {
    bytes: Bytes,
    tag: EntityTag,
}

impl Asset {
    /// A file that is stored as it is.
    pub(super) fn plain(media_type: &'static str, caching: Caching, content: impl Into<Bytes>) -> Self {
        Self::new(media_type, caching, Content::Plain(Variant::new(content.into())))
    }

    /// A file that is stored gzipped.
    pub(super) fn gzipped(media_type: &'static str, caching: Caching, packed: &'static [u8]) -> Self {
        let packed = Variant::new(Bytes::from_static(packed));
        let mut asset = Self::new(media_type, caching, Content::Gzipped { packed, plain: OnceLock::new() });
        asset.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        asset
    }

    /// The same file, sent with these headers too.
    pub(super) fn with_headers(
        mut self,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    ) -> Self {
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
        let variant = match &self.content {
            Content::Plain(plain) => plain,
            Content::Gzipped { packed, .. } if accepts_gzip(request) => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                packed
            }
            Content::Gzipped { packed, plain } => plain.get_or_init(|| packed.unpacked()),
        };
        variant.tag.clone().insert(&mut headers);
        let mut response = if variant.tag.is_held(request) {
            Response::builder().status(StatusCode::NOT_MODIFIED).body(Body::empty())
        } else {
            Response::builder().body(Body::from(variant.bytes.clone()))
        }
        .expect("a status and a body make an answer");
        *response.headers_mut() = headers;
        response
    }

    fn new(media_type: &'static str, caching: Caching, content: Content) -> Self {
        let caching = match caching {
            Caching::Revalidated => HeaderValue::from_static("no-cache"),
            Caching::Immutable => HeaderValue::from_static("public, max-age=31536000, immutable"),
        };
        let headers = [(CONTENT_TYPE, HeaderValue::from_static(media_type)), (CACHE_CONTROL, caching)];
        Self { headers: headers.into_iter().collect(), content, page: None }
    }
}

impl Variant {
    fn new(bytes: Bytes) -> Self {
        Self { tag: EntityTag::of_content(&bytes), bytes }
    }

    fn unpacked(&self) -> Self {
        let mut plain = Vec::new();
        GzDecoder::new(&*self.bytes).read_to_end(&mut plain).expect("the file was packed when it was stored");
        Self::new(plain.into())
    }
}

/// Who does not say so may not be able to unpack it.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let codings = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|codings| codings.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip") || name == "*");
        let refused = parts.any(|part| {
            let weight = part.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
            weight.is_some_and(|(_, weight)| weight.trim().parse() == Ok(0.0))
        });
        named && !refused
    })
}

/// Whether the client asks for HTML by name, as browsers do, and not for JSON before it. `*/*` is no wish for a page.
fn prefers_html(request: &HeaderMap) -> bool {
    let weight_of = |media_type: &str| {
        let ranges = request.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let weights = ranges.flat_map(|ranges| ranges.split(',')).filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media_type));
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            named.then(|| weight.map_or(1.0, |weight| weight.trim().parse().unwrap_or(0.0)))
        });
        weights.fold(0.0_f32, f32::max)
    };
    let html = weight_of("text/html");
    html > 0.0 && html >= weight_of("application/json")
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
