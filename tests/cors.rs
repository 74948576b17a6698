//! Calls from web pages: browsers block them unless the operator names the origin of the page.

use harness::{Answer, App};

const SHOP: &str = "https://shop.example.com";

fn from_page(app: &App, method: &str, path: &str, origin: &str) -> harness::Call {
    app.anonymous(method, path).header("Origin", origin)
}

fn preflight(app: &App, path: &str, origin: &str) -> Answer {
    let call = from_page(app, "OPTIONS", path, origin).header("Access-Control-Request-Method", "POST");
    call.header("Access-Control-Request-Headers", "authorization,content-type,idempotency-key").send()
}

fn allowed_origin(answer: &Answer) -> Option<&str> {
    answer.header("access-control-allow-origin")
}

/// The names in a header that lists some, in lower case.
fn listed(answer: &Answer, header: &str) -> Vec<String> {
    answer.header(header).unwrap_or_default().split(',').map(|name| name.trim().to_lowercase()).collect()
}

#[test]
fn no_page_is_allowed_by_default() {
    let app = App::start();
    preflight(&app, "/v1/pets", SHOP).error(401, "unauthorized");
    let answer = app.call("GET", "/v1/pets").header("Origin", SHOP).send();
    assert_eq!(answer.status, 200);
    let cors = answer.headers.iter().filter(|(name, _)| name.starts_with("access-control") || name == "vary");
    assert_eq!(cors.count(), 0, "{answer:?}");
}

#[test]
fn a_named_page_gets_its_preflight_response_without_a_key() {
    let app = App::start_with(&["--cors-origin", SHOP]);
    for path in ["/v1/pets", "/v1/pets/1", "/v1/nowhere"] {
        let answer = preflight(&app, path, SHOP);
        assert_eq!((answer.status, allowed_origin(&answer)), (204, Some(SHOP)), "{path}");
        for method in ["get", "head", "post"] {
            assert!(listed(&answer, "access-control-allow-methods").contains(&method.into()), "{method}");
        }
        for header in
            ["authorization", "content-type", "idempotency-key", "if-none-match", "log-position", "prefer"]
        {
            assert!(listed(&answer, "access-control-allow-headers").contains(&header.into()), "{header}");
        }
        assert!(answer.header("access-control-max-age").is_some());
        assert_eq!(answer.header("access-control-allow-credentials"), None, "no cookies here");
    }
}

#[test]
fn a_named_page_can_read_every_response_and_its_headers() {
    let app = App::start_with(&["--cors-origin", SHOP]);
    let with_key = app.call("GET", "/v1/pets").header("Origin", SHOP).send();
    let refused = from_page(&app, "GET", "/v1/pets", SHOP).send();
    assert_eq!((with_key.status, refused.status), (200, 401));
    for answer in [with_key, refused] {
        assert_eq!(allowed_origin(&answer), Some(SHOP));
        assert_eq!(answer.header("vary"), Some("Origin"), "caches keep pages apart");
        for header in [
            "link",
            "etag",
            "location",
            "log-position",
            "retry-after",
            "ratelimit",
            "ratelimit-policy",
            "preference-applied",
            "deprecation",
            "sunset",
        ] {
            assert!(listed(&answer, "access-control-expose-headers").contains(&header.into()), "{header}");
        }
    }
}

#[test]
fn other_pages_get_nothing() {
    let app = App::start_with(&["--cors-origin", SHOP]);
    for origin in
        ["https://evil.example.com", "http://shop.example.com", "https://shop.example.com:8443", "null"]
    {
        let answer = preflight(&app, "/v1/pets", origin);
        answer.error(401, "unauthorized");
        assert_eq!(allowed_origin(&answer), None, "{origin}");
        let answer = app.call("GET", "/v1/pets").header("Origin", origin).send();
        assert_eq!((answer.status, allowed_origin(&answer)), (200, None), "{origin}");
        assert_eq!(answer.header("vary"), Some("Origin"));
    }
    let no_preflight = from_page(&app, "OPTIONS", "/v1/pets", SHOP).send();
    no_preflight.error(401, "unauthorized");
}

#[test]
fn several_pages_can_be_named_in_either_way() {
    let other = "http://localhost:3000";
    for flags in
        [&["--cors-origin", SHOP, "--cors-origin", other][..], &["--cors-origin", &[SHOP, other].join(",")]]
    {
        let app = App::start_with(flags);
        for origin in [SHOP, other] {
            assert_eq!(allowed_origin(&preflight(&app, "/v1/pets", origin)), Some(origin));
        }
    }
}

#[test]
fn every_page_is_allowed_if_the_operator_says_so() {
    let app = App::start_with(&["--cors-origin", "*"]);
    assert_eq!(allowed_origin(&preflight(&app, "/v1/pets", "https://any.example")), Some("*"));
}

#[test]
fn an_invalid_origin_is_rejected_at_the_start() {
    for wrong in ["shop.example.com", "https://shop.example.com/", "https://Shop.example.com", ""] {
        let told = harness::petstore(["serve", "--cors-origin", wrong]);
        assert_eq!(told.code, Some(2), "{wrong}: {}", told.stderr);
        assert!(told.stderr.contains("http(s)://HOST"), "{}", told.stderr);
    }
}
