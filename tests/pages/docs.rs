//! `/docs` in a real browser: it loads, asks for a key once, calls the running service, and contacts no other
//! host.

use harness::{App, Browser};
use serde_json::{Value, json};

/// An operation on the page.
fn operation(id: &str) -> String {
    format!("#operations-animals-{id}")
}

/// Opens an operation and executes it.
fn execute(browser: &Browser, id: &str) {
    let operation = operation(id);
    browser.click(&format!("{operation} .opblock-summary-control"));
    browser.click(&format!("{operation} .try-out__btn"));
    browser.click(&format!("{operation} .execute"));
}

/// The status and the body that the page shows.
fn response(browser: &Browser, id: &str) -> (String, Value) {
    let response = format!("{} .live-responses-table", operation(id));
    let status = browser.text(&format!("{response} tbody .response-col_status"));
    let body = browser.text(&format!("{response} tbody .highlight-code code"));
    let status = status.split_ascii_whitespace().next().unwrap_or_default().to_owned();
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body:?}")))
}

#[test]
fn the_page_asks_for_a_key_once_and_calls_the_service() {
    let app = App::start();
    let origin = format!("http://{}/", app.address());
    let browser = Browser::start();
    browser.open(&format!("{origin}docs"));

    browser.click(".auth-wrapper .authorize");
    browser.fill("#auth-bearer-value", &app.key);
    browser.click(".auth-btn-wrapper .authorize");
    browser.click(".auth-btn-wrapper .btn-done");

    execute(&browser, "createPet");
    let key = browser.run("return document.querySelector('[placeholder=\"Idempotency-Key\"]').value");
    assert_eq!(key, "", "with a key, a second pet would not be added");
    let rex = json!({ "id": 1, "name": "Rex", "categoryId": 7, "status": "available" });
    assert_eq!(response(&browser, "createPet"), ("201".into(), rex.clone()));
    execute(&browser, "listPets");
    assert_eq!(response(&browser, "listPets"), ("200".into(), json!([rex])));
    assert_eq!(app.get("/v1/pets").json(), json!([rex]), "the pet is really there");

    assert_eq!(browser.complaints(), Vec::<String>::new(), "the page complains about nothing");
    let requested = browser.requested();
    assert!(requested.iter().any(|url| *url == format!("{origin}v1/pets")), "{requested:?}");
    for url in requested {
        assert!(url.starts_with(&origin) || url.starts_with("data:"), "the page asks {url}");
    }
    let stored =
        browser.run("return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])");
    assert!(!stored.to_string().contains(&app.key), "the key is stored nowhere: {stored}");
}

#[test]
fn the_page_fits_a_phone_and_is_dark_for_those_who_want_it() {
    let app = App::start();
    let browser = Browser::start();
    for (width, colours, background) in
        [(320, "dark", "rgb(28, 32, 34)"), (400, "light", "rgb(250, 250, 250)")]
    {
        browser.emulate(width, 780, colours);
        browser.open(&format!("http://{}/docs", app.address()));
        execute(&browser, "createPet");
        assert_eq!(response(&browser, "createPet").0, "401", "no key was entered");
        for id in ["listPets", "getPet", "listOrders"] {
            browser.click(&format!("{} .opblock-summary-control", operation(id)));
            browser.see(&format!("{} .opblock-body", operation(id)));
        }
        let shown = browser.run("return [innerWidth, document.documentElement.scrollWidth]");
        assert_eq!(shown, json!([width, width]), "nothing is wider than the screen");
        let covered = browser.run(
            "const box = (element) => element.getBoundingClientRect(); \
             const buttons = [...document.querySelectorAll('.copy-to-clipboard, .download-contents')].map(box); \
             const codes = [...document.querySelectorAll('.live-responses-table code, .curl-command code')].map(box); \
             return [buttons.length > 1, codes.length > 1, buttons.some((button) => codes.some((code) => \
               button.top < code.bottom && code.top < button.bottom && button.left < code.right && code.left < button.right))]",
        );
        assert_eq!(covered, json!([true, true, false]), "no button lies over a response");
        let shown = browser.run("return getComputedStyle(document.body).backgroundColor");
        assert_eq!(shown, background, "{colours}");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new(), "the page complains about nothing");
}

#[test]
fn how_it_works_is_folded_and_operations_show_what_is_deprecated_or_reserved() {
    let app = App::start();
    let browser = Browser::start();
    browser.open(&format!("http://{}/docs", app.address()));
    browser.see("#about p");
    let visible = "[...document.querySelectorAll('p')].filter((p) => p.checkVisibility())";
    let before = browser.run(&format!("return {visible}.map((p) => p.textContent)"));
    assert!(before.to_string().contains("The inventory of a pet store"), "{before}");
    assert!(!before.to_string().contains("Safe retries"), "{before}");
    browser.click("#about summary");
    assert!(browser.text("#about").contains("Safe retries"));
    let links = browser.run("return [...document.querySelectorAll('a')].map((a) => a.href).join(' ')");
    assert!(!links.as_str().unwrap().contains("spdx"), "no single page describes two licences: {links}");

    let get_pet = operation("getPet");
    browser.see(&format!("{get_pet}.opblock-deprecated"));
    browser.click(&format!("{get_pet} .opblock-summary-control"));
    browser.see(&format!("{get_pet} .try-out__btn"));
    let text = browser.text(&get_pet);
    assert!(text.contains("Deprecated") && text.contains("2030-12-05"), "{text}");

    let orders = operation("listOrders");
    browser.click(&format!("{orders} .opblock-summary-control"));
    browser.see(&format!("{orders} .opblock-section"));
    assert_eq!(browser.count(&format!("{orders} .try-out__btn, {orders} .execute")), 0, "nothing to try");
    let text = browser.text(&orders);
    assert!(text.contains("experimental") && text.contains("(reserved)"), "{text}");
}

#[test]
fn the_page_runs_no_foreign_code_and_contacts_no_other_host() {
    let app = App::start_with(&["--base-url", "https://pets.example.com/v1"]);
    let page = app.anonymous("GET", "/docs").send();
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.contains("connect-src 'self' https://pets.example.com;"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    let text = page.text();
    assert!(!text.contains("://"), "nothing is loaded from elsewhere: {text}");
    let redirect = app.anonymous("GET", "/docs/").send();
    assert_eq!((redirect.status, redirect.header("location")), (308, Some("../docs")));
    app.anonymous("GET", "/docs/nothing.js").send().error(404, "not_found");
}

#[test]
fn the_files_of_the_page_are_compressed_and_cached() {
    let app = App::start();
    let page = app.anonymous("GET", "/docs").send();
    let links = page.text().split(['"']).filter(|link| link.starts_with("docs/"));
    let links: Vec<_> = links.map(|link| format!("/{link}")).collect();
    assert_eq!(links.len(), 5, "{links:?}");
    for link in links {
        let file = app.anonymous("GET", &link).send();
        assert_eq!((file.status, file.header("cache-control")), (200, Some("no-cache")), "{link}");
        let coding = link.contains("swagger-ui").then_some("gzip");
        assert_eq!(file.header("content-encoding"), coding, "{link}");
        let tag = file.header("etag").unwrap();
        let again = app.anonymous("GET", &link).header("If-None-Match", tag).send();
        assert_eq!(again.status, 304, "{link}");
    }
}
