//! The same interface over HTTP/2, called by an independent client: curl.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use harness::{App, REX, succeed};

/// Status, protocol version and body of what curl got.
fn curl(app: &App, path: &str, more: &[&str]) -> (String, String, String) {
    let output = succeed(
        app.curl()
            .args(["--write-out", "\n%{http_code} %{http_version}"])
            .args(more)
            .arg(format!("http://{}{path}", app.address())),
    );
    let (body, end) = output.rsplit_once('\n').unwrap();
    let (status, version) = end.split_once(' ').unwrap();
    (status.into(), version.into(), body.into())
}

#[test]
fn pets_are_added_and_listed_over_http_2() {
    let app = App::start();
    let json = ["--header", "Content-Type: application/json", "--data"];
    let pet = REX;
    let (status, version, body) = curl(&app, "/v1/pets", &[&json[..], &[pet]].concat());
    assert_eq!((status.as_str(), version.as_str()), ("201", "2"), "{body}");
    assert_eq!(curl(&app, "/v1/pets", &[]).2, app.get("/v1/pets").text(), "the same list");
}

#[test]
fn errors_over_http_2_have_the_error_shape_too() {
    let app = App::start();
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large.json");
    std::fs::write(&large, format!(r#"{{"name":"{}"}}"#, "x".repeat(2_000_000))).unwrap();
    let large = format!("@{}", large.display());
    let json = ["--header", "Content-Type: application/json", "--data"];
    for (path, more, status, code) in [
        ("/v1/pets", [&json[..], &["{}"]].concat(), "400", "invalid_request"),
        ("/v1/pets", [&json[..], &[large.as_str()]].concat(), "413", "payload_too_large"),
        ("/v1/nothing", vec![], "404", "not_found"),
        ("/v1/pets", vec!["--header", "Authorization: Bearer twice"], "401", "unauthorized"),
    ] {
        let (got, version, body) = curl(&app, path, &more);
        assert_eq!((got.as_str(), version.as_str()), (status, "2"), "{body}");
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(error["code"], code, "{body}");
    }
}

/// The HTTP/2 library discards them, although RFC 9113 calls such a request malformed. No trailer is ever read.
#[test]
fn pseudo_headers_in_trailers_do_not_change_the_request() {
    let app = App::start();
    let json = ("content-type", "application/json".into());
    let key = ("authorization", format!("Bearer {}", app.key));
    let post = head("POST", "/v1/pets").into_iter().chain([json, key]);
    let body = frame(DATA, 0, REX.as_bytes());
    let trailers = [(":method", "GET".into()), (":path", "/livez".into())];
    let status = converse(&app, &[headers(0, post), body, headers(END_STREAM, trailers)]);
    assert!(status.is_some_and(|status| status != STATUS_200), "{status:?}");
    assert_eq!(app.get("/v1/pets").json()[0]["name"], "Rex");
}

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// `:status: 200` as an entry of the static table.
const STATUS_200: u8 = 0x88;

fn head(method: &str, path: &str) -> [(&'static str, String); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
        .map(|(name, value)| (name, value.to_owned()))
}

/// A HEADERS frame with literal fields (RFC 7541, section 6.2.2).
fn headers(flags: u8, fields: impl IntoIterator<Item = (&'static str, String)>) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let fields = fields.into_iter().flat_map(|(name, value)| [vec![0], text(name), text(&value)].concat());
    frame(HEADERS, flags | END_HEADERS, &fields.collect::<Vec<_>>())
}

/// A frame of the first stream.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &1_u32.to_be_bytes(), payload].concat()
}

/// Sends these frames, and returns the first byte of the response head, or `None` if the stream is reset.
fn converse(app: &App, frames: &[Vec<u8>]) -> Option<u8> {
    let mut stream = TcpStream::connect(app.address()).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.write_all(&frames.concat()).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).unwrap();
        match head[3] {
            HEADERS => return Some(payload[0]),
            RST_STREAM => return None,
            _ => {}
        }
    }
}
