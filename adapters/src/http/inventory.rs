//! The address `/`: the inventory page for a browser, a small directory for programs.
//!
//! The page is three files of plain HTML, CSS and JavaScript that call the public API with the key that a person enters.

use std::sync::Arc;

use axum::{
    Router,
    http::{
        HeaderMap, HeaderValue,
        header::{ACCEPT, VARY},
    },
    routing::get,
};

use super::{
    asset::{Asset, Caching::Revalidated},
    docs::{CSS, HTML, JAVASCRIPT, file, protection},
    service::Service,
    site::Site,
};

/// What a program finds at `/`: where to go from here.
const DIRECTORY: &str =
    r#"{"service":"petstore","pets":"/v1/pets","docs":"/docs","openapi":"/openapi.json"}"#;

/// The page, its files, and the directory.
pub(super) fn router(site: &Site) -> Router<Arc<Service>> {
    let vary = (VARY, HeaderValue::from_static("Accept"));
    let page = Asset::plain(HTML, Revalidated, include_str!("inventory/page.html"))
        .with_headers(protection(site))
        .with_headers([vary.clone()]);
    let directory = Asset::plain("application/json", Revalidated, DIRECTORY).with_headers([vary]);
    let start = Arc::new((page, directory));
    let start = get(async move |headers: HeaderMap| {
        let (page, directory) = &*start;
        if prefers_html(&headers) { page.answer(&headers) } else { directory.answer(&headers) }
    });
    Router::new()
        .route("/", start)
        .route(
            "/inventory/page.css",
            file(Asset::plain(CSS, Revalidated, include_str!("inventory/page.css"))),
        )
        .route(
            "/inventory/page.js",
            file(Asset::plain(JAVASCRIPT, Revalidated, include_str!("inventory/page.js"))),
        )
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

    #[test]
    fn the_directory_is_json() {
        let directory: serde_json::Value = serde_json::from_str(DIRECTORY).unwrap();
        assert_eq!(directory["pets"], "/v1/pets");
    }
}
