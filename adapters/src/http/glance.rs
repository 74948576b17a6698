//! The page at `/` of the operators' listener: the service at a glance, for browsers; a directory for programs.
//!
//! The page is three files of plain HTML, CSS and JavaScript that read `/metrics`, with a key where that needs one.

use super::{
    asset::{Asset, REVALIDATED},
    docs::{CSS, HTML, JAVASCRIPT, file, protection},
    route::Route,
    site::Site,
};

/// What a program finds at `/`: where to go from here.
const DIRECTORY: &str =
    r#"{"service":"petstore","metrics":"/metrics","live":"/livez","ready":"/readyz","log":"/log"}"#;

/// The page, its files, and the directory.
pub(super) fn routes() -> [Route; 4] {
    let page = Asset::plain(HTML, REVALIDATED, include_str!("glance/page.html"));
    let directory = Asset::plain("application/json", REVALIDATED, DIRECTORY);
    [
        // The page calls nobody but this listener.
        file("/", directory.or_page(page.with_headers(protection(&Site::default())))),
        file(
            "/glance/page.css",
            Asset::plain(
                CSS,
                REVALIDATED,
                concat!(include_str!("page_base.css"), include_str!("glance/page.css")),
            ),
        ),
        file("/glance/page.js", Asset::plain(JAVASCRIPT, REVALIDATED, include_str!("glance/page.js"))),
        file("/glance/icon.svg", Asset::plain("image/svg+xml", REVALIDATED, include_str!("docs/icon.svg"))),
    ]
}
