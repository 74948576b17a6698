//! Whatever a client sends, the response has the Error shape: paths, methods, framing, sizes, slow peers.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use harness::{App, Connection, Response, raw};

fn exchange(app: &App, request: &str) -> Option<Response> {
    let request = request.replace("KEY", &app.key);
    Response::parse(&raw(app.address(), request.as_bytes()), request.starts_with("HEAD"))
}

#[test]
fn unknown_paths_are_not_found_inside_and_outside_v1() {
    let app = App::start();
    let paths = "/pets /v2/pets /v1x /favicon.ico /v1 /v1/ /v1/pet /v1/pets/1/2 /v1//pets //v1/pets";
    for path in paths.split(' ') {
        let message = app.get(path).error(404, "not_found");
        assert!(message.ends_with("see /docs"), "{path}: {message}");
    }
}

#[test]
fn a_path_that_is_nearly_right_gets_a_hint() {
    let app = App::start();
    let (slash, prefix) = ("no path ends with a slash", "the paths of the API begin with /v1");
    for (path, hint) in [
        ("/pets", prefix),
        ("/pets/7", prefix),
        ("/v1/pets/", slash),
        ("/v1/store/orders/", slash),
        ("/v1/petz", "no such endpoint; see /docs"),
        ("/v1", "no such endpoint; see /docs"),
    ] {
        let message = app.get(path).error(404, "not_found");
        assert!(message.contains(hint), "{path}: {message}");
    }
    app.anonymous("GET", "/v1/pets/").send().error(401, "unauthorized");
}

#[test]
fn a_wrong_method_gets_405_with_the_methods_of_the_path() {
    let app = App::start();
    for (path, allowed) in [
        ("/v1/pets", "GET,HEAD,POST"),
        ("/v1/pets/1", "GET,HEAD"),
        ("/v1/store/orders", "GET,HEAD"),
        ("/livez", "GET,HEAD"),
        ("/openapi.json", "GET,HEAD"),
        ("/docs", "GET,HEAD"),
    ] {
        for method in ["DELETE", "PUT", "PATCH", "OPTIONS", "BREW"] {
            let response = app.call(method, path).send();
            response.error(405, "method_not_allowed");
            assert_eq!(response.header("allow"), Some(allowed), "{method} {path}");
        }
    }
    app.anonymous("OPTIONS", "/v1/pets").send().error(401, "unauthorized");
    app.call("OPTIONS", "/v1/nowhere").send().error(404, "not_found");
}

#[test]
fn store_orders_are_reserved_and_return_501() {
    let app = App::start();
    app.get("/v1/store/orders").error(501, "not_implemented");
}

#[test]
fn a_body_declared_too_large_is_rejected_at_once() {
    let app = App::start();
    let mut stream = TcpStream::connect(app.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!(
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n",
        app.key
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut response = [0; 12];
    stream.read_exact(&mut response).expect("a response comes although no body was sent");
    assert_eq!(&response, b"HTTP/1.1 413");
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
fn a_peer_that_sends_nothing_or_half_a_header_is_disconnected() {
    let app = App::start();
    for beginning in ["", "GET /v1/pets HTTP/1.1\r\nHost: a\r\nX-Slow"] {
        let mut stream = TcpStream::connect(app.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        stream.write_all(beginning.as_bytes()).unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        let timed_out = ended.as_ref().is_err_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        });
        assert!(!timed_out, "{beginning:?}: the service closes the connection");
    }
}

#[test]
fn a_body_that_does_not_arrive_times_out() {
    let app = App::start();
    let head = "POST /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer KEY\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{";
    exchange(&app, head).unwrap().error(408, "request_timeout");
}

/// Opens a connection and sends a request on it.
fn request_on_new_connection(app: &App, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(app.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    stream
}

#[test]
fn at_the_limit_a_new_connection_replaces_one_without_a_key() {
    let app = App::start_with(&["--max-connections", "4"]);
    let list = format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", app.key);
    let mut proven = Connection::open(app.address(), &app.key);
    assert_eq!(proven.list().status, 200);
    let _proven = request_on_new_connection(&app, &list);
    // Its body is drained for five seconds.
    let rejected = "POST /v1/pets HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{";
    let [mut unproven, _other] = [(); 2].map(|()| request_on_new_connection(&app, rejected));
    for _ in 0..20 {
        assert_eq!(app.probe("/livez").status, 200);
    }
    assert_eq!(proven.list().status, 200, "connections with a key are kept");
    // It has not read its response, so the end is a reset.
    assert!(unproven.read_to_end(&mut Vec::new()).is_err(), "the connection was evicted");
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
