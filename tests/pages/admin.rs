//! The page at `/` of `--admin-listen` in a real browser: what an operator sees, with and without a key.

use std::net::SocketAddr;

use harness::{App, Browser, Call, PostgresServer, eventually, wait_until};
use serde_json::json;

use super::inventory::{check_files, check_key_storage};

const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";

fn open(address: SocketAddr) -> Browser {
    let browser = Browser::start();
    browser.open(&format!("http://{address}/"));
    browser
}

/// A service on a disk that other machines could reach, and the address of its admin listener on this one.
fn reachable() -> (App, SocketAddr) {
    let app = App::start_with(&["--admin-listen", "0.0.0.0:0", "--admin-insecure-http"]);
    let ops = SocketAddr::from(([127, 0, 0, 1], app.admin().port()));
    (app, ops)
}

fn work(app: &App) {
    for number in 0..5 {
        app.post(&format!(r#"{{"name":"Pet {number}","categoryId":7}}"#));
        app.get("/v1/pets");
    }
    app.get("/v1/pets/1");
    app.post("{}");
    app.get_as("nonsense", "/v1/pets");
}

/// What a plot shows: its entries and their values.
fn plot(browser: &Browser, title: &str) -> String {
    let script = format!(
        "const card = [...document.querySelectorAll('.plot')].find((card) => card.querySelector('h3').textContent === {title:?});
         return card ? [...card.querySelectorAll('li')].map((item) => item.textContent).join('|') : ''"
    );
    browser.run(&script).as_str().unwrap().to_owned()
}

#[test]
fn an_operator_sees_the_state_and_live_plots() {
    let app = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    work(&app);
    let browser = open(app.admin());
    browser.see("#overview:not([hidden])");
    browser.see_text("#state", "Ready");
    browser.see_text("#reason", "Reads and writes work.");
    browser.see_text("#promise", "Durability:");
    for fact in ["Engine", "Version", "Uptime", "Pets", "Position", "Lag"] {
        assert!(browser.text("#facts").contains(fact), "{fact}");
    }
    wait_until("the plots show requests of each route", || {
        work(&app);
        let shown = plot(&browser, "Requests by route");
        let rate =
            |name: &str| shown.split('|').any(|item| item.starts_with(name) && !item.ends_with(">0/s"));
        rate("GET /v1/pets") && rate("POST /v1/pets") && rate("GET /v1/pets/{petId}")
    });
    wait_until("and latencies, commits and times of the log", || {
        work(&app);
        let latency = plot(&browser, "Latency");
        let commits = plot(&browser, "Commits");
        let append = plot(&browser, "Append and sync");
        let known = |shown: &str, name: &str| {
            shown.split('|').any(|item| item.strip_prefix(name).is_some_and(|value| !value.starts_with('–')))
        };
        known(&latency, "p99") && known(&commits, "commits") && known(&append, "append p99")
    });
    assert!(plot(&browser, "Rejected and failed requests").contains("POST /v1/pets 4xx"));
    assert!(plot(&browser, "Requests with an invalid key").contains("unknown"));
    for title in ["Writer queue", "Position", "Lag", "Memory", "Connections"] {
        let shown = plot(&browser, title);
        assert!(!shown.is_empty() && !shown.contains('–'), "{title}: {shown}");
    }
    browser.see_text("#rows", "test");
    let label =
        browser.run("return document.querySelector('.plot svg[role=img]').getAttribute('aria-label')");
    assert!(label.as_str().unwrap().starts_with("Requests by route, now: "), "{label}");
    browser.click("#pause");
    browser.see_text("#pause", "Resume");
    assert_eq!(browser.complaints(), Vec::<String>::new(), "the page complains about nothing");
}

#[test]
fn metrics_that_an_engine_does_not_have_are_not_shown() {
    let server = PostgresServer::start();
    let app = App::on_with(&server.url("postgres"), &["--admin-listen", "127.0.0.1:0"]);
    let browser = open(app.admin());
    wait_until("the plots are drawn", || plot(&browser, "Append and sync").contains("append p99"));
    assert!(!plot(&browser, "Append and sync").contains("sync p"));
    let hidden = "return [...document.querySelectorAll('.plot')].filter((card) => card.hidden)
                  .map((card) => card.querySelector('h3').textContent)";
    assert_eq!(browser.run(hidden), json!(["Disk"]));
    let without_data = format!("drawn.forEach((plot) => plot.clear()); {hidden}");
    assert_eq!(
        browser.run(&without_data),
        json!(["Disk"]),
        "a plot whose metric exists waits for its first value"
    );
    let facts = browser.text("#facts");
    assert!(facts.contains("Lag") && !facts.contains("Free disk space") && !facts.contains('–'), "{facts}");
}

#[test]
fn where_metrics_need_a_key_the_page_asks_for_one() {
    let (app, ops) = reachable();
    let key = app.issue_key(&["--name", "operator", "--scope", "metrics"]);
    let browser = open(ops);
    browser.see("#sign-in:not([hidden])");
    for (wrong, words) in [("wrong", "The API key is not valid"), (&*app.key, "lacks the metrics scope")] {
        browser.fill("#key", wrong);
        browser.click("#key-form button");
        browser.see_text("#key-error", words);
        assert_eq!(browser.run("return document.querySelector('#overview').hidden"), json!(true));
    }
    check_key_storage(&browser, ops, &key, "#overview:not([hidden])");
}

#[test]
fn a_node_that_is_not_ready_says_why() {
    let mut app = App::start_with(&["--admin-listen", "127.0.0.1:0", "--drain-delay", "60s"]);
    let browser = open(app.admin());
    browser.see_text("#state", "Ready");
    app.signal("TERM");
    browser.see_text("#state", "Not ready");
    browser.see_text("#reason", "The service is about to stop.");
    browser.see_text("#announcement", "Not ready. The service is about to stop.");
    app.kill();
    browser.see_text("#problem", "The service does not respond");
}

#[test]
fn the_page_fits_every_screen_and_passes_an_accessibility_check() {
    let (app, ops) = reachable();
    let key = app.issue_key(&["--name", "operator", "--scope", "metrics"]);
    let old = app.issue_key(&["--name", "a web shop with quite a long name <b>&amp; markup</b>"]);
    wait_until("the key is active", || app.get_as(&old, "/v1/pets").status == 200);
    let browser = open(ops);
    for (part, signed_in) in [("sign-in", false), ("page", true)] {
        browser.see("#sign-in:not([hidden])");
        if signed_in {
            browser.fill("#key", &key);
            browser.press(ENTER);
            browser.see("#overview:not([hidden])");
            eventually("there is something to see", || {
                work(&app);
                app.get_as(&old, "/v1/pets/1");
                let drawn = "return (document.querySelector('.frame path.s0')?.getAttribute('d') ?? '').split('L').length > 3";
                (browser.run(drawn) == json!(true)).then_some(())
            });
            assert_eq!(browser.count("#rows b"), 0, "no name becomes markup");
        }
        browser.check_every_screen(&format!("glance-{part}"));
    }
}

#[test]
fn the_page_is_small_contacts_no_other_host_and_can_be_used_with_the_keyboard() {
    let app = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    let ops = app.admin();
    let browser = open(ops);
    browser.see("#overview:not([hidden])");
    check_files(&browser, ops, "/metrics", 40_000);
    let directory = Call::new(ops, "GET", "/").send();
    assert_eq!((directory.status, directory.header("content-type")), (200, Some("application/json")));
    assert_eq!(directory.json()["metrics"], "/metrics");
    let visited = ["Skip to main content", "pause", "metrics"].map(|_| {
        browser.press(TAB);
        browser.run("return document.activeElement.id || document.activeElement.textContent")
    });
    assert_eq!(visited, ["Skip to main content", "pause", "metrics"]);
}
