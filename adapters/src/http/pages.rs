//! The pages, as files that are part of the binary: the API documentation, the inventory, and the admin page.
//!
//! Nothing is loaded from other hosts, and the content security policy enforces that. The two files of Swagger UI are
//! those of the npm package swagger-ui-dist, gzipped (see NOTICE).

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, LOCATION,
            REFERRER_POLICY, VARY, X_FRAME_OPTIONS,
        },
    },
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get},
};

use super::{
    api::conditional::{file_tag, is_not_modified, require_match},
    app_state::AppState,
    error::ApiError,
    settings::HttpSettings,
};

const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

const DIRECTORY: &str =
    r#"{"service":"petstore","pets":"/v1/pets","docs":"/docs","openapi":"/openapi.json"}"#;
const ADMIN_DIRECTORY: &str =
    r#"{"service":"petstore","metrics":"/metrics","live":"/livez","ready":"/readyz","log":"/log"}"#;

/// The OpenAPI document, and Swagger UI that shows it.
pub(crate) fn docs(document: String, settings: &HttpSettings) -> Router<Arc<AppState>> {
    let page = page(include_str!("pages/docs/page.html"), settings);
    let ui_script = gzipped_file(JAVASCRIPT, include_bytes!("pages/docs/swagger-ui-bundle.js.gz"));
    let ui_style = gzipped_file(CSS, include_bytes!("pages/docs/swagger-ui.css.gz"));
    let licence = include_str!("pages/docs/swagger-ui-bundle.js.LICENSE.txt");
    Router::new()
        .route("/openapi.json", file(Asset::new(JSON, document)))
        .route("/docs", file(page))
        // The page names its files relative to itself, so it has one address only.
        .route("/docs/", get(async || (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../docs")])))
        .route("/docs/page.js", file(Asset::new(JAVASCRIPT, include_str!("pages/docs/page.js"))))
        .route("/docs/page.css", file(Asset::new(CSS, include_str!("pages/docs/page.css"))))
        .route("/docs/icon.svg", file(Asset::new(SVG, include_str!("pages/docs/icon.svg"))))
        .route("/docs/swagger-ui.js", ui_script)
        .route("/docs/swagger-ui.css", ui_style)
        .route("/docs/swagger-ui-bundle.js.LICENSE.txt", file(Asset::new(TEXT, licence)))
}

/// The inventory page. It calls the API with the key that a person enters.
pub(crate) fn inventory(settings: &HttpSettings) -> Router<Arc<AppState>> {
    let page = page(include_str!("pages/inventory/page.html"), settings);
    let style = concat!(include_str!("pages/base.css"), include_str!("pages/inventory/page.css"));
    let script = concat!(include_str!("pages/base.js"), include_str!("pages/inventory/page.js"));
    Router::new()
        .route("/", page_or_directory(page, DIRECTORY))
        .route("/inventory/page.css", file(Asset::new(CSS, style)))
        .route("/inventory/page.js", file(Asset::new(JAVASCRIPT, script)))
}

/// The admin page. It reads `/metrics`, with a key where that needs one.
pub(crate) fn admin() -> Router<Arc<AppState>> {
    let page = page(include_str!("pages/admin/page.html"), &HttpSettings::default());
    let style = concat!(include_str!("pages/base.css"), include_str!("pages/admin/page.css"));
    let script = concat!(include_str!("pages/base.js"), include_str!("pages/admin/page.js"));
    Router::new()
        .route("/", page_or_directory(page, ADMIN_DIRECTORY))
        .route("/admin/page.css", file(Asset::new(CSS, style)))
        .route("/admin/page.js", file(Asset::new(JAVASCRIPT, script)))
        .route("/admin/icon.svg", file(Asset::new(SVG, include_str!("pages/docs/icon.svg"))))
}

fn file(asset: Asset) -> MethodRouter<Arc<AppState>> {
    let asset = Arc::new(asset);
    get(async move |headers: HeaderMap| asset.respond(&headers))
}

/// A file that is stored gzipped, and sent so: all browsers accept it.
fn gzipped_file(media_type: &'static str, gzipped: &'static [u8]) -> MethodRouter<Arc<AppState>> {
    file(Asset::new(media_type, gzipped).with_headers([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]))
}

/// The page for clients that ask for HTML, otherwise the directory.
fn page_or_directory(page: Asset, directory: &'static str) -> MethodRouter<Arc<AppState>> {
    let vary = || [(VARY, HeaderValue::from_static("Accept"))];
    let assets = Arc::new([page, Asset::new(JSON, directory)].map(|asset| asset.with_headers(vary())));
    get(async move |headers: HeaderMap| assets[usize::from(!prefers_html(&headers))].respond(&headers))
}

/// A page that is restricted to its own files, and to calls of this service and of those in the OpenAPI document.
fn page(html: &'static str, settings: &HttpSettings) -> Asset {
    let servers = [&settings.base_url, &settings.staging_url].into_iter().flatten();
    let servers: String = servers.flat_map(|url| [" ", url.origin()]).collect();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{servers}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    Asset::new(HTML, html).with_headers([
        (CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).expect("addresses are plain ASCII")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    ])
}

/// A file that is the same for all clients: in memory, with an entity tag.
struct Asset {
    headers: HeaderMap,
    bytes: Bytes,
}

impl Asset {
    /// A file that may change with the binary, so clients revalidate it each time.
    fn new(media_type: &'static str, content: impl Into<Bytes>) -> Self {
        let (bytes, caching) = (content.into(), HeaderValue::from_static("no-cache"));
        let media_type = HeaderValue::from_static(media_type);
        let headers = [(CONTENT_TYPE, media_type), (CACHE_CONTROL, caching), (ETAG, file_tag(&bytes))];
        Self { headers: headers.into_iter().collect(), bytes }
    }

    fn with_headers(mut self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// The file, 304 for clients that have it, or 412 for clients that ask for a different version.
    fn respond(&self, request: &HeaderMap) -> Result<Response, ApiError> {
        let tag = &self.headers[ETAG];
        require_match(request, tag)?;
        if is_not_modified(request, tag) {
            return Ok((StatusCode::NOT_MODIFIED, self.headers.clone()).into_response());
        }
        Ok((self.headers.clone(), self.bytes.clone()).into_response())
    }
}

/// Whether the client asks for HTML by name, as browsers do, and does not prefer JSON. `*/*` does not count.
fn prefers_html(request: &HeaderMap) -> bool {
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
    use std::io::Read as _;

    use application::Digest;
    use flate2::read::GzDecoder;

    use super::*;

    /// The sums are those of the files in the npm package swagger-ui-dist, in the version that NOTICE names.
    #[test]
    fn the_embedded_files_are_the_published_ones() {
        let bundle: &[u8] = include_bytes!("pages/docs/swagger-ui-bundle.js.gz");
        let style = include_bytes!("pages/docs/swagger-ui.css.gz");
        for (packed, sum) in [
            (bundle, "36eeb4d5640b9c036b1d0f854499af1cceebbdb260b790a03a18be5e8488fbf5"),
            (style, "c3cfe8248c4b0b89673600fb829924eafbac6de4bc4b2b06f5f5243483074d0a"),
        ] {
            let mut plain = Vec::new();
            GzDecoder::new(packed).read_to_end(&mut plain).unwrap();
            assert_eq!(Digest::of(&plain).to_string(), sum);
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
