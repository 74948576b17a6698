//! Calls from web pages: browsers block them unless the operator names the origin of the page.

use std::collections::BTreeSet;

use harness::{App, Response, petstore, raw};
use serde_json::Value;

const SHOP: &str = "https://shop.example.com";

fn from_page(app: &App, method: &str, path: &str, origin: &str) -> harness::Call {
    app.anonymous(method, path).header("Origin", origin)
}

fn preflight(app: &App, path: &str, origin: &str) -> Response {
    let call = from_page(app, "OPTIONS", path, origin).header("Access-Control-Request-Method", "POST");
    call.header("Access-Control-Request-Headers", "authorization,content-type,idempotency-key").send()
}

fn allowed_origin(response: &Response) -> Option<&str> {
    response.header("access-control-allow-origin")
}

/// The names in a header that lists some, in lower case.
fn listed(response: &Response, header: &str) -> Vec<String> {
    response.header(header).unwrap_or_default().split(',').map(|name| name.trim().to_lowercase()).collect()
}

#[test]
fn no_page_is_allowed_by_default() {
    let app = App::start();
    preflight(&app, "/v1/pets", SHOP).error(401, "unauthorized");
    let response = app.call("GET", "/v1/pets").header("Origin", SHOP).send();
    assert_eq!(response.status, 200);
    let cors =
        response.headers.iter().filter(|(name, _)| name.starts_with("access-control") || name == "vary");
    assert_eq!(cors.count(), 0, "{response:?}");
}

#[test]
fn a_named_page_gets_its_preflight_response_without_a_key() {
    let other = "http://localhost:3000";
    let both = [SHOP, other].join(",");
    for (flags, origin, allowed) in [
        (&["--cors-origin", SHOP][..], SHOP, SHOP),
        (&["--cors-origin", other, "--cors-origin", SHOP], SHOP, SHOP),
        (&["--cors-origin", &both], other, other),
        (&["--cors-origin", "*"], "https://any.example", "*"),
    ] {
        let app = App::start_with(flags);
        for path in ["/v1/pets", "/v1/pets/1", "/v1/nowhere"] {
            let response = preflight(&app, path, origin);
            assert_eq!(
                (response.status, allowed_origin(&response)),
                (204, Some(allowed)),
                "{flags:?} {path}"
            );
            let methods = listed(&response, "access-control-allow-methods");
            assert!(
                ["get", "head", "post"].iter().all(|method| methods.contains(&(*method).into())),
                "{methods:?}"
            );
            assert!(response.header("access-control-max-age").is_some());
            assert_eq!(response.header("access-control-allow-credentials"), None, "no cookies here");
        }
    }
}

#[test]
fn a_named_page_can_read_every_response_and_other_pages_none() {
    let app = App::start_with(&["--cors-origin", SHOP]);
    for (call, status) in [(app.call("GET", "/v1/pets"), 200), (app.anonymous("GET", "/v1/pets"), 401)] {
        let response = call.header("Origin", SHOP).send();
        assert_eq!((response.status, allowed_origin(&response)), (status, Some(SHOP)));
        assert_eq!(response.header("vary"), Some("Origin"), "caches keep pages apart");
    }
    for origin in
        ["https://evil.example.com", "http://shop.example.com", "https://shop.example.com:8443", "null"]
    {
        let response = preflight(&app, "/v1/pets", origin);
        response.error(401, "unauthorized");
        assert_eq!(allowed_origin(&response), None, "{origin}");
        let response = app.call("GET", "/v1/pets").header("Origin", origin).send();
        assert_eq!((response.status, allowed_origin(&response)), (200, None), "{origin}");
        assert_eq!(response.header("vary"), Some("Origin"));
    }
    let no_preflight = from_page(&app, "OPTIONS", "/v1/pets", SHOP).send();
    no_preflight.error(401, "unauthorized");
}

#[test]
fn an_invalid_origin_is_rejected_at_the_start() {
    let hosts = "shop.example.com/ Shop.example.com shop.example.com:443 a@shop.example.com *.example.com/";
    let hosts = hosts.split(' ').map(|host| format!("https://{host}"));
    for wrong in hosts.chain(["", "null", "shop.example.com", "file://x"].map(str::to_owned)) {
        harness::petstore(["serve", "--cors-origin", &wrong]).exits_with(2).says("http(s)://HOST");
    }
}

/// The names of all response headers in the OpenAPI document, and those of all request headers.
fn documented(document: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut responses, mut requests) = (BTreeSet::new(), BTreeSet::new());
    let mut values = vec![document];
    while let Some(value) = values.pop() {
        if value["in"] == "header" {
            requests.insert(value["name"].as_str().unwrap().to_lowercase());
        }
        for (key, child) in value.as_object().into_iter().flatten() {
            if key == "headers" {
                responses.extend(child.as_object().unwrap().keys().map(|name| name.to_lowercase()));
            }
            values.push(child);
        }
        values.extend(value.as_array().into_iter().flatten());
    }
    (responses, requests)
}

#[test]
fn pages_may_use_exactly_the_headers_that_the_document_describes() {
    let app = App::start_with(&["--cors-origin", SHOP]);
    let document: Value = serde_json::from_str(&petstore(["openapi"]).stdout).unwrap();
    let description = document["info"]["description"].as_str().unwrap().to_lowercase();
    let is_described = |name: &String| description.contains(&format!("`{name}"));
    let (responses, requests) = documented(&document);
    assert!(responses.len() > 8 && requests.len() > 1, "{responses:?} {requests:?}");

    let response = app.call("GET", "/v1/pets").header("Origin", SHOP).send();
    let exposed: BTreeSet<_> = listed(&response, "access-control-expose-headers").into_iter().collect();
    // Every page may read this one.
    let hidden: Vec<_> = responses.difference(&exposed).filter(|name| *name != "cache-control").collect();
    assert!(hidden.is_empty(), "documented, but not exposed: {hidden:?}");
    let unknown: Vec<_> = exposed.difference(&responses).filter(|name| !is_described(name)).collect();
    assert!(unknown.is_empty(), "exposed, but not documented: {unknown:?}");

    let allowed: BTreeSet<_> =
        listed(&preflight(&app, "/v1/pets", SHOP), "access-control-allow-headers").into_iter().collect();
    let rejected: Vec<_> = requests.difference(&allowed).collect();
    assert!(rejected.is_empty(), "documented, but not accepted: {rejected:?}");
    // The media types of a body stand for this one.
    let unknown: Vec<_> =
        allowed.difference(&requests).filter(|name| *name != "content-type" && !is_described(name)).collect();
    assert!(unknown.is_empty(), "accepted, but not documented: {unknown:?}");
}

#[test]
fn no_page_may_call_the_admin_listener() {
    let app = App::start_with(&["--cors-origin", "*", "--admin-listen", "127.0.0.1:0"]);
    let get = |path: &str, host: &str, more: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {SHOP}\r\n{more}Connection: close\r\n\r\n"
        );
        Response::parse(&raw(app.admin(), request.as_bytes()), false).unwrap()
    };
    for host in ["localhost", "LOCALHOST:9100", "127.0.0.1:1", "[::1]:80"] {
        let response = get("/metrics", host, "");
        assert_eq!((response.status, allowed_origin(&response)), (200, None), "{host}");
    }
    // A page may give its own name the address of this machine.
    for path in ["/metrics", "/", "/readyz", "/readyz/writes", "/livez"] {
        let message = get(path, "shop.example.com", "").error(400, "invalid_request");
        assert!(message.starts_with("Host must be localhost"), "{message}");
    }
    for (url, host) in
        [("http://localhost/metrics", "shop.example.com"), ("http://shop.example.com/metrics", "localhost")]
    {
        let message = get(url, host, "").error(400, "invalid_request");
        assert!(message.starts_with("Host must be localhost"), "{message}");
    }
    assert_eq!(get("http://localhost:9100/metrics", "LOCALHOST:9100", "").status, 200);
    let key = format!("Authorization: Bearer {}\r\n", app.key);
    assert_eq!(get("/metrics", "shop.example.com", &key).status, 200);
}
