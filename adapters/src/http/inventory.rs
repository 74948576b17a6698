//! The path `/`: the inventory page for browsers, a small directory for programs.
//!
//! The page is three files of plain HTML, CSS and JavaScript that call the public API with the key that a person enters.

use super::{
    asset::{Asset, REVALIDATED},
    docs::{CSS, HTML, JAVASCRIPT, file, protection},
    route::Route,
    site::Site,
};

/// What a program finds at `/`: where to go from here.
const DIRECTORY: &str =
    r#"{"service":"petstore","pets":"/v1/pets","docs":"/docs","openapi":"/openapi.json"}"#;

/// The page, its files, and the directory.
pub(super) fn routes(site: &Site) -> [Route; 3] {
    let page = Asset::plain(HTML, REVALIDATED, include_str!("inventory/page.html"));
    let directory = Asset::plain("application/json", REVALIDATED, DIRECTORY);
    [
        file("/", directory.or_page(page.with_headers(protection(site)))),
        file(
            "/inventory/page.css",
            Asset::plain(
                CSS,
                REVALIDATED,
                concat!(include_str!("page_base.css"), include_str!("inventory/page.css")),
            ),
        ),
        file("/inventory/page.js", Asset::plain(JAVASCRIPT, REVALIDATED, include_str!("inventory/page.js"))),
    ]
}
