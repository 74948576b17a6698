//! What no schema can describe: bytes on a socket that could be read as two requests, hide one request in
//! another, or are not a request at all. Each gets one clear response or none, and no request is ever
//! smuggled in.

use harness::{App, Response, raw};

const PET: &str = r#"{"name":"a","categoryId":1}"#;

/// A request that would add a pet if a parser took it for one.
fn smuggled(app: &App) -> String {
    format!("POST /v1/pets HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{PET}", headers(app), PET.len())
}

fn headers(app: &App) -> String {
    format!("Host: a\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n", app.key)
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

/// The statuses of everything that came back on one connection. The service must close it.
fn statuses(app: &App, request: impl AsRef<[u8]>) -> Vec<u16> {
    let responses = raw(app.address(), request.as_ref());
    let text = String::from_utf8_lossy(&responses);
    let statuses = text.split("HTTP/1.1 ").skip(1).filter_map(|response| response.get(..3)?.parse().ok());
    statuses.filter(|status| *status != 100).collect()
}

fn count(app: &App) -> usize {
    app.all_pets().len()
}

#[test]
fn a_body_of_ambiguous_length_closes_the_connection() {
    let app = App::start();
    let headers = headers(&app);
    let smuggled = smuggled(&app);
    let empty = "0\r\n\r\n";
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 99999999999999999999999\r\n",
    ] {
        let request = format!("POST /v1/pets HTTP/1.1\r\n{headers}{framing}\r\n{empty}{smuggled}");
        let statuses = statuses(&app, request);
        assert!(matches!(statuses[..], [400 | 413 | 431]), "{framing:?}: {statuses:?}");
    }
    assert_eq!(count(&app), 0, "nothing was smuggled in");
}

#[test]
fn unambiguous_transfer_codings_are_accepted() {
    let app = App::start();
    let headers = headers(&app);
    for (framing, body) in [
        ("Transfer-Encoding: chunked\r\n", chunked(PET)),
        ("Transfer-Encoding: CHUNKED\t\r\n", chunked(PET)),
        ("Transfer-Encoding: chunked\r\n", format!("{:X};a=b;c=\"d\"\r\n{PET}\r\n000\r\n\r\n", PET.len())),
        (
            "Transfer-Encoding: chunked\r\n",
            format!("{:x}\r\n{PET}\r\n0\r\nAuthorization: x\r\n\r\n", PET.len()),
        ),
        ("Content-Length: 27\r\n", PET.into()),
        ("Content-Length: 27\r\nContent-Length: 27\r\n", PET.into()),
    ] {
        let before = count(&app);
        let request = format!("POST /v1/pets HTTP/1.1\r\n{headers}Connection: close\r\n{framing}\r\n{body}");
        assert_eq!(statuses(&app, request), [201], "{framing:?}");
        assert_eq!(count(&app), before + 1);
    }
}

#[test]
fn broken_chunks_add_nothing() {
    let app = App::start();
    let headers = headers(&app);
    for body in [
        format!("ffffffffffffffffff\r\n{PET}\r\n0\r\n\r\n"),
        format!("1b\n{PET}\n0\n\n"),
        format!("1b\r\n{PET}XX0\r\n\r\n"),
        format!("1b \t x\r\n{PET}\r\n0\r\n\r\n"),
        format!("1a\r\n{PET}\r\n0\r\n\r\n"),
    ] {
        let request = format!("POST /v1/pets HTTP/1.1\r\n{headers}Transfer-Encoding: chunked\r\n\r\n{body}");
        let statuses = statuses(&app, request);
        assert!(matches!(statuses[..], [] | [400]), "{body:?}: {statuses:?}");
    }
    assert_eq!(count(&app), 0);
}

#[test]
fn the_body_of_a_get_is_not_read_as_a_request() {
    let app = App::start();
    let (headers, smuggled) = (headers(&app), smuggled(&app));
    for framing in ["Content-Length: LENGTH\r\n", "Transfer-Encoding: chunked\r\n"] {
        let body = if framing.starts_with('C') { smuggled.clone() } else { chunked(&smuggled) };
        let framing = framing.replace("LENGTH", &smuggled.len().to_string());
        let request = format!("GET /v1/pets HTTP/1.1\r\n{headers}Connection: close\r\n{framing}\r\n{body}");
        assert_eq!(statuses(&app, request), [200], "{framing:?}");
    }
    assert_eq!(count(&app), 0);
}

#[test]
fn header_lines_that_other_parsers_read_differently_are_rejected() {
    let app = App::start();
    let headers = headers(&app);
    for line in ["X: a\r\n b\r\n", "X: a\0b\r\n", "X : a\r\n", " X: a\r\n", "X\r\n"] {
        assert_eq!(
            statuses(&app, format!("GET /v1/pets HTTP/1.1\r\n{headers}{line}\r\n")),
            [400],
            "{line:?}"
        );
    }
    for first in [
        "GET /v1/pets\r\n",
        "GET  /v1/pets HTTP/1.1\r\n",
        "GET /v1/pets\0 HTTP/1.1\r\n",
        "GET /v1/p ets HTTP/1.1\r\n",
        "GET /v1/pets HTTP/1.2\r\n",
        "GET /v1/pets http/1.1\r\n",
        "\u{16}\u{3}\u{1}\0",
    ] {
        let statuses = statuses(&app, format!("{first}{headers}\r\n"));
        assert!(matches!(statuses[..], [400]), "{first:?}: {statuses:?}");
    }
}

#[test]
fn a_header_that_matters_may_occur_only_once() {
    let app = App::start();
    let response_to = |line: &str| {
        let length = PET.len();
        let request = format!(
            "POST /v1/pets HTTP/1.1\r\n{}{line}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{PET}",
            headers(&app)
        );
        Response::parse(&raw(app.address(), request.as_bytes()), false).unwrap()
    };
    response_to("Host: b").error(400, "invalid_request");
    response_to("Host: a").error(400, "invalid_request");
    response_to(&format!("Authorization: Bearer {}", app.key)).error(401, "unauthorized");
    response_to("Content-Type: application/json").error(415, "unsupported_media_type");
    response_to("Content-Encoding: gzip").error(415, "unsupported_media_type");
    response_to("Idempotency-Key: a\r\nIdempotency-Key: a").error(400, "invalid_request");
    response_to("Log-Position: 0\r\nLog-Position: 0").error(400, "invalid_request");
    assert_eq!(count(&app), 0);
}

#[test]
fn bytes_that_are_not_text_are_rejected_or_harmless() {
    let app = App::start();
    let headers = headers(&app);
    let send = |first: &[u8], more: &[u8]| {
        let request = [first, b" HTTP/1.1\r\n", headers.as_bytes(), b"Connection: close\r\n", more, b"\r\n"];
        statuses(&app, request.concat())
    };
    assert_eq!(send(b"GET /v1/pets/\xff", b""), [400]);
    assert_eq!(send(b"GET /v1/pets?status=\xff", b""), [400]);
    assert_eq!(send(b"GET /v1/pets?status=%ff", b""), [400]);
    assert_eq!(send(b"GET /v1/pets/%ff", b""), [404]);
    assert_eq!(send(b"GET /v1/pets", b"X-Request-Id: \xff\xfe\r\n"), [200]);
    assert_eq!(send(b"GET /v1/pets", b"traceparent: \xff\r\n"), [200]);
    assert_eq!(send(b"GET /v1/pets", b"If-None-Match: \"\xff\"\r\n"), [200]);
    assert_eq!(send(b"GET /v1/pets", b"Log-Position: \xff\r\n"), [400]);
    assert_eq!(send(b"POST /v1/pets", b"Idempotency-Key: \xff\r\n"), [400]);
}

#[test]
fn other_spellings_of_a_path_give_no_extra_access() {
    let app = App::start();
    let headers = headers(&app);
    for (first, expected) in [
        ("GET http://other.example/v1/pets", 200),
        ("GET http://other.example/v1/../livez", 404),
        ("OPTIONS *", 404),
        ("CONNECT other.example:80", 404),
        ("TRACE /v1/pets", 405),
        ("GET /v1/%70ets", 404),
        ("GET /v1/pets%2f1", 404),
        ("GET /V1/pets", 404),
        ("GET /v1/pets;x=1", 404),
        ("GET /v1/./pets", 404),
        ("GET /docs/../v1/pets", 404),
        ("GET /docs/..%2fv1", 404),
    ] {
        let request = format!("{first} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        assert_eq!(statuses(&app, request), [expected], "{first}");
    }
}

#[test]
fn request_heads_have_a_size_limit() {
    let app = App::start();
    let headers = headers(&app);
    let head = |path: usize, count: usize, size: usize| {
        let path = format!("/v1/pets/{}", "1".repeat(path));
        let more = format!("X: {}\r\n", "x".repeat(size)).repeat(count);
        statuses(&app, format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n{more}\r\n"))
    };
    assert_eq!(head(10_000, 0, 0), [404], "a long address is an address");
    assert_eq!(head(1, 96, 100), [404], "a hundred header fields");
    for (path, count, size) in [(20_000, 0, 0), (1, 1, 20_000), (1, 97, 1), (1, 5_000, 1), (1, 40, 1_000)] {
        let statuses = head(path, count, size);
        assert!(matches!(statuses[..], [] | [400 | 431]), "{path} {count} {size}: {statuses:?}");
    }
}
