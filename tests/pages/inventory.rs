//! The page at `/` in a real browser: signing in, browsing, adding pets, and what happens when something goes
//! wrong.

use std::net::SocketAddr;

use harness::{App, Browser, Call, CutProxy, eventually, wait_until};
use serde_json::json;

const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const SPACE: &str = "\u{e00d}";

fn open(address: impl std::fmt::Display) -> Browser {
    let browser = Browser::start();
    browser.open(&format!("http://{address}/"));
    browser
}

fn sign_in(browser: &Browser, key: &str) {
    browser.fill("#key", key);
    browser.click("#key-form button");
    browser.see("#store:not([hidden])");
}

/// What the rows of the table show.
fn rows(browser: &Browser) -> Vec<String> {
    let rows = browser.run(
        "return [...document.querySelectorAll('#rows tr')].map((row) => [...row.children].map((cell) => cell.textContent).join('|'))",
    );
    rows.as_array().unwrap().iter().map(|row| row.as_str().unwrap().to_owned()).collect()
}

fn wait_for_rows(browser: &Browser, expected: &[&str]) {
    wait_until(&format!("the table shows {expected:?}"), || rows(browser) == expected);
}

fn add(browser: &Browser, name: &str, category: &str, status: &str) {
    // The list may have shown the last pet before the form had the response to it.
    browser.see("#submit:enabled");
    browser.fill("#name", name);
    browser.fill("#category", category);
    browser.run(&format!("document.querySelector('#status').value = {status:?}"));
    browser.click("#submit");
}

#[test]
fn a_person_adds_filters_and_finds_pets() {
    let app = App::start();
    let browser = open(app.address());
    sign_in(&browser, &app.key);
    browser.see_text("#empty", "There are no pets here");
    add(&browser, " ", "seven", "");
    let name = browser.see_text("#name-error", "Name must");
    let category = browser.see_text("#category-error", "Category id must be an integer");
    let message =
        app.post(r#"{"name":" ","categoryId":"seven"}"#).json()["message"].as_str().unwrap().to_owned();
    let labelled = message.replace("name", "Name").replace("; categoryId", ".; Category id");
    assert_eq!(format!("{name}; {category}"), format!("{labelled}."), "the service's own words");
    assert_eq!(browser.run("return document.activeElement.id"), json!("name"), "the first fault");
    assert_eq!(browser.count("[aria-invalid=true]"), 2);
    add(&browser, "Rex", "7", "available");
    wait_for_rows(&browser, &["1|Rex|7|available"]);
    assert_eq!(browser.count("[aria-invalid=true]"), 0, "and is gone when it is mended");
    add(&browser, "Bella", "-3", "");
    wait_for_rows(&browser, &["1|Rex|7|available", "2|Bella|-3|"]);
    browser.click("input[value=sold]");
    browser.see_text("#empty", "There are no sold pets here");
    browser.click("input[value=available]");
    wait_for_rows(&browser, &["1|Rex|7|available"]);
    browser.see_text("#pets-title", "1 available pet");
    browser.fill("#find-id", "2");
    browser.click(".find button");
    wait_for_rows(&browser, &["2|Bella|-3|"]);
    browser.fill("#find-id", "3");
    browser.click(".find button");
    browser.see_text("#find-error", "There is no pet with the id 3");
    browser.fill("#find-id", "two");
    browser.click(".find button");
    browser.see_text("#find-error", "a whole number");
    assert_eq!(browser.complaints(), Vec::<String>::new(), "the page complains about nothing");
}

#[test]
fn a_person_turns_the_pages_and_sees_what_others_add() {
    let app = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    for number in 1..=41 {
        app.post(&format!(r#"{{"name":"Pet {number}","categoryId":1}}"#));
    }
    let browser = open(app.address());
    sign_in(&browser, &app.key);
    let first = |number: u32| {
        eventually(&format!("the page begins with pet {number}"), || {
            rows(&browser).first()?.starts_with(&format!("{number}|")).then_some(())
        });
    };
    first(1);
    browser.see_text("#pets-title", "41 pets");
    browser.click("#next");
    first(21);
    browser.click("#next");
    wait_for_rows(&browser, &["41|Pet 41|1|"]);
    assert_eq!(browser.run("return document.querySelector('#next').disabled"), json!(true));
    app.post(r#"{"name":"Newcomer","categoryId":1}"#);
    wait_for_rows(&browser, &["41|Pet 41|1|", "42|Newcomer|1|"]);
    browser.see_text("#pets-title", "42 pets");
    browser.see_text("#page-number", "Page 3");
    assert_eq!(browser.count("tr.new"), 1, "the newcomer stands out");
    browser.click("#previous");
    first(21);
    let unchanged = r#"method="GET",route="/v1/pets",status="304""#;
    wait_until("an idle page is refreshed by 304", || app.metrics().contains(unchanged));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_is_sent_again_until_it_has_a_response_and_adds_one_pet() {
    let app = App::start();
    let proxy = CutProxy::start(app.address()).await;
    let browser = open(proxy.address());
    sign_in(&browser, &app.key);
    proxy.lose_the_response_to("Idempotency-Key:");
    add(&browser, "Rex", "7", "sold");
    wait_for_rows(&browser, &["1|Rex|7|sold"]);
    wait_until("the response was lost", || proxy.lost_responses() == 1);
    let rex = json!({ "id": 1, "name": "Rex", "categoryId": 7, "status": "sold" });
    assert_eq!(app.get("/v1/pets").json(), json!([rex]));

    // The next pet can be entered while the last one is being added.
    proxy.refuse();
    add(&browser, "Bella", "7", "");
    browser.see_text("#add-error", "Trying again; the pet will be added only once");
    browser.fill("#name", "Luna");
    proxy.heal();
    wait_for_rows(&browser, &["1|Rex|7|sold", "2|Bella|7|"]);
    browser.click("#submit:enabled");
    wait_for_rows(&browser, &["1|Rex|7|sold", "2|Bella|7|", "3|Luna|7|"]);

    // A person can stop trying, and repeat safely later.
    proxy.refuse();
    add(&browser, "Max", "7", "");
    browser.see_text("#add-error", "Trying again");
    browser.click("#give-up");
    browser.see_text("#add-error", "it will not be added twice");
    browser.see_text("#list-error", "The list may be out of date");
    proxy.heal();
    browser.click("#submit");
    wait_for_rows(&browser, &["1|Rex|7|sold", "2|Bella|7|", "3|Luna|7|", "4|Max|7|"]);
}

#[test]
fn a_read_only_key_is_told_that_it_cannot_add() {
    let app = App::start();
    let reader = app.issue_active_key(&["--name", "reader", "--scope", "read"]);
    let browser = open(app.address());
    sign_in(&browser, &reader);
    add(&browser, "Rex", "7", "");
    browser.see_text("#add-error", "scope");
    assert!(app.get("/v1/pets").json().as_array().unwrap().is_empty());
}

#[test]
fn the_key_is_stored_only_where_the_person_allows_it_and_can_be_revoked() {
    let app = App::start();
    let browser = open(app.address());
    browser.fill("#key", "wrong");
    browser.click("#key-form button");
    browser.see_text("#key-error", "The API key");
    check_key_storage(&browser, app.address(), &app.key, "#store:not([hidden])");

    sign_in(&browser, &app.key);
    app.revoke(&app.key);
    browser.see("#sign-in:not([hidden])");
    browser.see_text("#key-error", "The API key");
    assert!(rows(&browser).is_empty(), "nothing stays on the screen");
}

#[test]
fn names_are_shown_as_text_and_large_numbers_stay_exact() {
    let app = App::start();
    let browser = open(app.address());
    sign_in(&browser, &app.key);
    let names =
        [r#"<img src=x onerror="alert(1)">"#, r#"","id":5,"x":""#, "🐕\u{200d}🦺", "כלב טוב", "&amp;"];
    for name in names {
        app.post(&json!({ "name": name, "categoryId": i64::MAX }).to_string());
    }
    add(&browser, "Largest", "9223372036854775807", "");
    add_waits(&browser, 6);
    add(&browser, "Smallest", "-9223372036854775808", "");
    add_waits(&browser, 7);
    let mut expected: Vec<String> =
        (1..).zip(names).map(|(id, name)| format!("{id}|{name}|9223372036854775807|")).collect();
    expected.push("6|Largest|9223372036854775807|".into());
    expected.push("7|Smallest|-9223372036854775808|".into());
    assert_eq!(rows(&browser), expected);
    assert_eq!(app.get("/v1/pets/7").json()["categoryId"], json!(i64::MIN), "sent as it was typed");
    assert_eq!(browser.count("#rows img"), 0, "no name becomes markup");
}

fn add_waits(browser: &Browser, pets: usize) {
    wait_until(&format!("there are {pets} pets"), || rows(browser).len() == pets);
}

#[test]
fn everything_can_be_done_with_the_keyboard() {
    let app = App::start();
    let browser = open(app.address());
    browser.see("#sign-in:not([hidden])");
    browser.press(&format!("{}{ENTER}", app.key));
    browser.see("#store:not([hidden])");
    eventually("the list has the focus", || {
        (browser.run("return document.activeElement.id") == json!("pets-title")).then_some(())
    });
    let mut visited = vec![];
    while browser.run("return document.activeElement.id") != json!("name") {
        browser.press(TAB);
        visited
            .push(browser.run("return document.activeElement.id || document.activeElement.name").to_string());
        assert!(visited.len() < 12, "the form can be reached: {visited:?}");
    }
    browser.press(&format!("Rex{TAB}7{TAB}s{TAB}"));
    browser.press(SPACE);
    wait_for_rows(&browser, &["1|Rex|7|sold"]);
    assert_eq!(browser.run("return document.activeElement.id"), json!("name"), "ready for the next pet");
}

#[test]
fn the_page_is_small_fits_every_screen_and_passes_an_accessibility_check() {
    let app = App::start();
    let long = "Maximilian-Ferdinand-the-Third-of-Somewhere-".repeat(4);
    for (name, status) in [("Rex", "available"), ("Bella", "pending"), (&*long, "sold"), ("Zoë", "available")]
    {
        app.post(&json!({ "name": name, "categoryId": i64::MIN, "status": status }).to_string());
    }
    app.post(r#"{"name":"כלב טוב","categoryId":1}"#);
    let browser = open(app.address());
    for (part, signed_in) in [("sign-in", false), ("store", true)] {
        if signed_in {
            browser.open(&format!("http://{}/", app.address()));
            sign_in(&browser, &app.key);
            add_waits(&browser, 5);
            check_files(&browser, app.address(), "/v1/", 60_000);
        }
        browser.check_every_screen(&format!("inventory-{part}"));
    }
}

/// Checks that a page loads few bytes, all from its own host, and that no other page can embed it. Calls of the service,
/// which contain `calls`, do not count.
pub(super) fn check_files(browser: &Browser, address: SocketAddr, calls: &str, most: usize) {
    let mut files = browser.requested();
    files.retain(|url| !url.contains(calls) && !url.starts_with("data:"));
    files.dedup();
    let (origin, mut weight) = (format!("http://{address}"), 0);
    let get = |path: &str| Call::new(address, "GET", path).header("Accept", "text/html").send();
    for url in &files {
        let file = get(url.strip_prefix(&origin).unwrap_or_else(|| panic!("the page asks {url}")));
        assert_eq!(file.status, 200, "{url}");
        weight += file.body.len();
    }
    assert!(files.len() >= 4 && weight < most, "{weight} bytes in {files:?}");
    let page = get("/");
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
}

/// Signs in with the keyboard, without and then with the checkbox, and out again: only in between, the browser stores the key.
pub(super) fn check_key_storage(browser: &Browser, address: SocketAddr, key: &str, shown: &str) {
    let sign_in = || {
        browser.fill("#key", key);
        browser.press(ENTER);
        browser.see(shown);
    };
    let stored = || {
        let all = "[{...localStorage}, {...sessionStorage}, document.cookie, location.href]";
        browser.run(&format!("return JSON.stringify({all})")).to_string().contains(key)
    };
    sign_in();
    assert!(!stored(), "the key is in the page's memory alone");
    browser.open(&format!("http://{address}/"));
    browser.click("#remember");
    sign_in();
    assert!(stored(), "the person asked for it");
    browser.open(&format!("http://{address}/"));
    browser.see(shown);
    browser.click("#sign-out");
    browser.see("#sign-in:not([hidden])");
    assert!(!stored(), "signing out forgets it");
    for url in browser.requested() {
        assert!(!url.contains(key), "{url}");
    }
}

#[test]
fn programs_get_a_directory_at_the_same_path() {
    let app = App::start();
    for accept in [None, Some("*/*"), Some("application/json")] {
        let call = app.anonymous("GET", "/");
        let response =
            accept.map_or_else(|| app.anonymous("GET", "/"), |accept| call.header("Accept", accept)).send();
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, Some("application/json")),
            "{accept:?}"
        );
        assert!(response.all("vary").contains(&"Accept"), "{accept:?}");
        for path in ["pets", "docs", "openapi"] {
            let path = response.json()[path].as_str().unwrap().to_owned();
            assert_eq!(app.get(&path).status, 200, "{path}");
        }
    }
    app.anonymous("POST", "/").send().error(405, "method_not_allowed");
}
