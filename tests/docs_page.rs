//! `/docs` in a real browser: it loads, takes a key once, and calls the running service, all from one place.

use std::{env, fs};

use harness::{App, Browser, root};
use serde_json::{Value, json};

/// Says where to put a picture of the page, for example `docs/docs-page.png`.
const SCREENSHOT: &str = "PETSTORE_SCREENSHOT";

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
fn answer(browser: &Browser, id: &str) -> (String, Value) {
    let answer = format!("{} .live-responses-table", operation(id));
    let status = browser.text(&format!("{answer} tbody .response-col_status"));
    let body = browser.text(&format!("{answer} tbody .highlight-code code"));
    let status = status.split_ascii_whitespace().next().unwrap_or_default().to_owned();
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body:?}")))
}

#[test]
fn the_page_takes_a_key_once_and_calls_the_service() {
    let app = App::start();
    let origin = format!("http://{}/", app.address());
    let browser = Browser::start();
    browser.open(&format!("{origin}docs"));

    browser.click(".auth-wrapper .authorize");
    browser.fill("#auth-bearer-value", &app.key);
    browser.click(".auth-btn-wrapper .authorize");
    browser.click(".auth-btn-wrapper .btn-done");

    execute(&browser, "createPet");
    let rex = json!({ "id": 1, "name": "Rex", "categoryId": 7, "status": "available" });
    assert_eq!(answer(&browser, "createPet"), ("201".into(), rex.clone()));
    execute(&browser, "listPets");
    assert_eq!(answer(&browser, "listPets"), ("200".into(), json!([rex])));
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
    if let Some(path) = env::var_os(SCREENSHOT) {
        browser.click("#operations-animals-createPet .opblock-summary-control");
        browser.run("document.querySelector('.scheme-container').scrollIntoView()");
        fs::write(root().join(path), browser.screenshot()).unwrap();
    }
}

#[test]
fn the_page_shows_what_is_deprecated_and_what_cannot_be_tried() {
    let app = App::start();
    let browser = Browser::start();
    browser.open(&format!("http://{}/docs", app.address()));

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
    assert!(browser.text(&orders).contains("experimental"));
}
