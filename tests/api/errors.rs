//! Whatever a client sends, the response has the Error shape: paths, methods, framing, sizes.

use harness::{App, Response, raw};

fn exchange(app: &App, request: &str) -> Option<Response> {
    let request = request.replace("KEY", &app.key);
    Response::parse(&raw(app.address(), request.as_bytes()), request.starts_with("HEAD"))
}

#[test]
fn an_unknown_path_a_wrong_method_and_a_reserved_operation_are_rejected() {
    let app = App::start();
    for path in "/v2/pets /v1x /favicon.ico /v1 /v1/ /v1/petz /v1/pets/1/2 /v1//pets //v1/pets".split(' ') {
        let message = app.get(path).error(404, "not_found");
        assert!(message.ends_with("see /docs"), "{path}: {message}");
    }
    for (path, hint) in
        [("/pets/7", "the paths of the API begin with /v1"), ("/v1/pets/", "no path ends with a slash")]
    {
        let message = app.get(path).error(404, "not_found");
        assert!(message.contains(hint), "{path}: {message}");
    }
    for (path, allowed) in [("/v1/pets", "GET,HEAD,POST"), ("/v1/pets/1", "GET,HEAD"), ("/docs", "GET,HEAD")]
    {
        let response = app.call("BREW", path).send();
        response.error(405, "method_not_allowed");
        assert_eq!(response.header("allow"), Some(allowed), "{path}");
    }
    app.get("/v1/store/orders").error(501, "not_implemented");
}

#[test]
fn a_chunked_body_is_accepted_up_to_the_size_limit() {
    let app = App::start();
    let head = "POST /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let pet = r#"{"name":"a","categoryId":1}"#;
    let whole = format!("{head}{:x}\r\n{pet}\r\n0\r\n\r\n", pet.len());
    assert_eq!(exchange(&app, &whole).unwrap().status, 201);
    let large = format!("{head}{:x}\r\n{}\r\n0\r\n\r\n", 70_000, " ".repeat(70_000));
    exchange(&app, &large).unwrap().error(413, "payload_too_large");
    let cut = format!("{head}5\r\n{{\"nam\r\nzz\r\n");
    exchange(&app, &cut).expect("half a body gets a response").error(400, "invalid_request");
}

#[test]
fn probes_need_no_key_and_reveal_no_secrets() {
    let app = App::start();
    assert_eq!(app.probe("/livez").status, 200);
    let ready = app.probe("/readyz");
    assert_eq!(ready.status, 200);
    let directory = app.directory().to_str().unwrap();
    assert!(!ready.text().contains(directory), "{}", ready.text());
    assert!(ready.text().contains("sled"), "the engine is named: {}", ready.text());
}
