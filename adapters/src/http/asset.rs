//! Files that are the same for everybody: kept in memory, tagged, and sent compressed to those who can read that.

use std::{io::Read as _, sync::OnceLock};

use axum::{
    body::{Body, Bytes},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::Response,
};
use flate2::read::GzDecoder;

use super::etag::EntityTag;

/// One file.
pub(super) struct Asset {
    headers: HeaderMap,
    content: Content,
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

    /// The file, or 304 for those who hold it.
    pub(super) fn answer(&self, request: &HeaderMap) -> Response {
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
        Self { headers: headers.into_iter().collect(), content }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(codings: &[&'static str]) -> HeaderMap {
        codings.iter().map(|coding| (ACCEPT_ENCODING, HeaderValue::from_static(coding))).collect()
    }

    #[test]
    fn gzip_is_for_those_who_say_that_they_read_it() {
        for codings in [&["gzip"][..], &["br, gzip;q=0.5"], &["GZIP"], &["*"], &["br", "gzip"]] {
            assert!(accepts_gzip(&request(codings)), "{codings:?}");
        }
        for codings in
            [&[][..], &[""], &["identity"], &["gzip;q=0"], &["gzip; Q=0.000"], &["br"], &["x-gzipped"]]
        {
            assert!(!accepts_gzip(&request(codings)), "{codings:?}");
        }
    }
}
