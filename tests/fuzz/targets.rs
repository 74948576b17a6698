//! The parsers of everything that comes from outside, each with what must hold for whatever bytes.

use std::{
    cell::RefCell,
    fs,
    net::SocketAddr,
    sync::{Arc, LazyLock},
};

use adapters::{
    access::{
        Scope,
        api_keys::{KeyFile, NewKey},
    },
    event_log::{memory::MemoryLog, nats::NatsLog, postgres::PostgresLog, sled::fuzzing},
};
use application::{LogAccess, log::codec, transfer};
use chrono::DateTime;
use harness::{Connection, REX, open_node, serve_node};
use tokio::runtime::Runtime;

#[expect(dead_code, reason = "only the schemes are needed")]
#[path = "../../bin/src/engines.rs"]
mod engines;
#[expect(dead_code, reason = "only the parser is needed")]
#[path = "../../bin/src/store_url.rs"]
mod store_url;

/// Fails if a parser does not keep its word about these bytes.
pub(crate) type Target = fn(&[u8]);

pub(crate) const TARGETS: [(&str, Target); 12] = [
    ("body", body),
    ("export", export),
    ("idempotency-key", |bytes| header("POST", "Idempotency-Key", bytes)),
    ("if-none-match", |bytes| header("GET", "If-None-Match", bytes)),
    ("key-file", key_file),
    ("nats-url", |bytes| url(bytes, NatsLog::check_url)),
    ("postgres-url", |bytes| url(bytes, PostgresLog::check_url)),
    ("query", query),
    ("record", record),
    ("sled-chunk", fuzzing::check_chunk),
    ("sled-segment", fuzzing::check_segment),
    ("store-url", check_store_url),
];

#[cfg_attr(not(fuzzing), expect(dead_code, reason = "for libFuzzer, which runs one target at a time"))]
pub(crate) fn named(name: &str) -> Target {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("there is no target {name}")).1
}

/// What can be read can be written down, and means the same when it is read again.
fn record(bytes: &[u8]) {
    assert!(codec::decode(bytes).is_err() || bytes.ends_with(b"\"}"));
    if let Ok(commit) = codec::decode(&with_checksum(bytes)) {
        assert_eq!(codec::decode(&codec::encode(&commit).bytes), Ok(commit));
    }
}

/// An export is rejected, or holds as many commits as it has lines before its manifest.
fn export(bytes: &[u8]) {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let file: Vec<u8> = lines
        .clone()
        .flat_map(|line| match line.strip_suffix(b"\n") {
            Some(line) if !line.starts_with(b"{\"manifest\"") => [&with_checksum(line)[..], b"\n"].concat(),
            Some(_) | None => line.to_vec(),
        })
        .collect();
    for file in [bytes, &file] {
        if let Ok(last) = RUNTIME.block_on(transfer::check_export(file, &mut transfer::Cut::default())) {
            assert_eq!(last.0 + 1, lines.clone().count() as u64);
        }
    }
}

/// The checksum is what a fuzzer cannot guess.
fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let checksum = crc32c::crc32c(bytes);
    [bytes, format!(",\"crc32c\":\"{checksum:08x}\"}}").as_bytes()].concat()
}

/// A key file that is understood still says the same after a key was added to it.
fn key_file(bytes: &[u8]) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("keys.toml");
    fs::write(&path, bytes).expect("memory takes every write");
    let file = KeyFile::at(path);
    let Ok(before) = file.keys() else { return };
    let new = NewKey {
        name: "one more".parse().expect("a name"),
        scopes: Scope::Read.into(),
        rate_limit: None,
        expires: None,
    };
    let now = DateTime::from_timestamp(1_900_000_000, 0).expect("a time");
    if file.issue(new, now).is_ok() {
        let after = file.keys().expect("what we wrote can be read");
        assert_eq!(after[..before.len()], before);
    }
}

fn url(bytes: &[u8], check: impl Fn(&str) -> Result<(), application::ports::LogError>) {
    let Ok(url) = str::from_utf8(bytes) else { return };
    // Paths would be opened.
    if !["passfile", "sslrootcert", "creds", "ca=", "cert=", "key="].iter().any(|word| url.contains(word)) {
        let _ = check(url);
    }
}

/// A query is accepted or rejected; what is rejected is the client's fault.
fn query(bytes: &[u8]) {
    if bytes.iter().all(|byte| byte.is_ascii_graphic() && !b"#\"<>".contains(byte)) {
        ask(&[b"GET /v1/pets?", bytes, b" HTTP/1.1\r\n\r\n"].concat());
    }
}

fn header(method: &str, name: &str, value: &[u8]) {
    if value.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7F)) {
        let body = REX;
        let (kind, body) = match method {
            "POST" => ("Content-Type: application/json\r\n", body),
            _ => ("", ""),
        };
        let start = format!("{method} /v1/pets HTTP/1.1\r\n{kind}Content-Length: {}\r\n{name}: ", body.len());
        ask(&[start.as_bytes(), value, b"\r\n\r\n", body.as_bytes()].concat());
    }
}

fn body(bytes: &[u8]) {
    let start = format!(
        "POST /v1/pets HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        bytes.len()
    );
    ask(&[start.as_bytes(), bytes].concat());
}

/// What is shown of a URL holds no secret, so showing that again changes nothing.
fn check_store_url(bytes: &[u8]) {
    let parse = |url: &str| url.parse::<store_url::StoreUrl>().map(|url| url.to_string());
    if let Ok(shown) = str::from_utf8(bytes).map_err(|error| error.to_string()).and_then(parse) {
        assert!(parse(&shown).is_err_and(|_| !shown.contains('@')) || parse(&shown) == Ok(shown));
    }
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// The service on an empty store in memory, which accepts every key.
static SERVICE: LazyLock<SocketAddr> = LazyLock::new(|| {
    let node = open_node(Arc::<MemoryLog>::default(), LogAccess::Exclusive);
    RUNTIME.block_on(async { serve_node(Arc::new(node.await)).await })
});

/// Sends a request, given up to its last line, over a connection that is kept, and reads the response to its end.
fn ask(request: &[u8]) {
    thread_local!(static CONNECTION: RefCell<Option<Connection>> = const { RefCell::new(None) });
    let line = request.iter().position(|byte| *byte == b'\n').expect("a request line") + 1;
    let (line, rest) = request.split_at(line);
    let request = [line, b"Host: localhost\r\nAuthorization: Bearer key\r\n", rest].concat();
    CONNECTION.with_borrow_mut(|kept| {
        let connection = kept.get_or_insert_with(|| Connection::open(*SERVICE, "key"));
        let response = connection.send(&request).expect("the service responds completely");
        assert!(response.status < 500, "{response:?}");
        if response.all("connection").contains(&"close") {
            *kept = None;
        }
    });
}
