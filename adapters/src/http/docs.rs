//! The page at `/docs`: Swagger UI with our document, served by the program itself. Nothing is loaded from
//! anywhere else, and the content security policy enforces that.
//!
//! The two Swagger UI files are the published ones of the npm package swagger-ui-dist, gzipped (see NOTICE).

use axum::{
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{CONTENT_SECURITY_POLICY, LOCATION, REFERRER_POLICY, X_FRAME_OPTIONS},
    },
    response::{IntoResponse as _, Response},
};

use super::{
    asset::{Asset, IMMUTABLE, REVALIDATED},
    route::{Handler, Route},
    service::Service,
    site::Site,
};

/// What these routes are counted as.
const NAME: &str = "describe";

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
pub(super) const CSS: &str = "text/css; charset=utf-8";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// The addresses that describe the interface: for programs, and for people.
pub(super) fn routes(document: String, site: &Site) -> [Route; 9] {
    let page = Asset::plain(HTML, REVALIDATED, include_str!("docs/page.html"));
    let ui_script = Asset::gzipped(JAVASCRIPT, IMMUTABLE, include_bytes!("docs/swagger-ui-bundle.js.gz"));
    let ui_style = Asset::gzipped(CSS, IMMUTABLE, include_bytes!("docs/swagger-ui.css.gz"));
    let licences = include_str!("docs/swagger-ui-bundle.js.LICENSE.txt");
    let licences = Asset::plain("text/plain; charset=utf-8", REVALIDATED, licences);
    [
        file("/openapi.json", Asset::plain("application/json", REVALIDATED, document)),
        file("/docs", page.with_headers(protection(site))),
        Route::get("/docs/", NAME, Handler::Public(page_address)),
        file("/docs/page.js", Asset::plain(JAVASCRIPT, REVALIDATED, include_str!("docs/page.js"))),
        file("/docs/page.css", Asset::plain(CSS, REVALIDATED, include_str!("docs/page.css"))),
        file("/docs/icon.svg", Asset::plain("image/svg+xml", REVALIDATED, include_str!("docs/icon.svg"))),
        file("/docs/swagger-ui-5.34.1.js", ui_script),
        file("/docs/swagger-ui-5.34.1.css", ui_style),
        file("/docs/swagger-ui-bundle.js.LICENSE.txt", licences),
    ]
}

pub(super) fn file(path: &'static str, asset: Asset) -> Route {
    Route::get(path, NAME, Handler::File(Box::new(asset)))
}

/// The page names its files relative to itself, so it has one address only.
fn page_address(_: &Service, _: &HeaderMap) -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "../docs")]).into_response()
}

/// What the page may do: run and show what comes from here, and call this service and those in the document.
pub(super) fn protection(site: &Site) -> [(HeaderName, HeaderValue); 4] {
    let servers = [&site.base_url, &site.staging_url].into_iter().flatten();
    let servers: String = servers.flat_map(|url| [" ", url.origin()]).collect();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{servers}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    [
        (CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).expect("addresses are plain ASCII")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (OPENER_POLICY, HeaderValue::from_static("same-origin")),
    ]
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::body::Bytes;
    use flate2::read::GzDecoder;
    use sha2::{Digest as _, Sha256};

    /// The sums are those of the files in the npm package swagger-ui-dist 5.34.1.
    #[test]
    fn the_embedded_files_are_the_published_ones() {
        let bundle: &[u8] = include_bytes!("docs/swagger-ui-bundle.js.gz");
        let style = include_bytes!("docs/swagger-ui.css.gz");
        for (packed, sum) in [
            (bundle, "36eeb4d5640b9c036b1d0f854499af1cceebbdb260b790a03a18be5e8488fbf5"),
            (style, "c3cfe8248c4b0b89673600fb829924eafbac6de4bc4b2b06f5f5243483074d0a"),
        ] {
            let mut plain = Vec::new();
            GzDecoder::new(packed).read_to_end(&mut plain).unwrap();
            assert_eq!(format!("{:x}", Bytes::copy_from_slice(&Sha256::digest(&plain))), sum);
        }
    }
}
