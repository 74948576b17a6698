//! Whole connections over a pipe in memory. The clock stands still while a task has something to do.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use axum::{
    body::Bytes,
    http::{Method, Request, Response},
    routing::get,
};
use h2::{
    RecvStream,
    client::{self, SendRequest},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
    time::{self, Instant},
};

use super::*;
use crate::http::{
    ListenerSettings,
    server::{
        Listener,
        tests::{connection, listener, router},
    },
};

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";

/// A client at the other end of a connection.
struct Peer {
    stream: DuplexStream,
    listener: Arc<Listener>,
    activity: Arc<Activity>,
    server: JoinHandle<()>,
}

impl Peer {
    fn connect() -> Self {
        Self::connect_to(router(), 1024)
    }

    /// The pipe holds so many bytes in each direction.
    fn connect_to(router: Router, capacity: usize) -> Self {
        let (stream, theirs) = tokio::io::duplex(capacity);
        let listener = listener(ListenerSettings::default(), &[]);
        let activity = connection(&listener);
        let socket =
            Socket { stream: theirs, activity: activity.clone(), discard_unread: |_| {}, received: 0 };
        let server = tokio::spawn(serve(socket, router));
        Self { stream, listener, activity, server }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads up to the end of this text.
    async fn read_past(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(text.as_bytes()) {
            read.push(self.stream.read_u8().await.unwrap());
        }
        String::from_utf8(read).unwrap()
    }

    /// Reads until the server closes, and sees that nothing is left of the connection.
    async fn read_to_the_end(mut self) -> String {
        let mut read = String::new();
        self.stream.read_to_string(&mut read).await.unwrap();
        self.server.await.unwrap();
        read
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_idles_too_long_after_a_response_is_closed() {
    let mut peer = Peer::connect();
    peer.send(LIVEZ).await;
    assert!(peer.read_to_the_end().await.ends_with(r#"{"status":"alive"}"#));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_half_of_the_next_head_is_disconnected() {
    let mut peer = Peer::connect();
    peer.send(LIVEZ).await;
    peer.read_past("}").await;
    peer.send("GET").await;
    assert_eq!(peer.read_to_the_end().await, "");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_no_response_is_disconnected() {
    let mut peer = Peer::connect();
    let (_, mut sending) = tokio::io::split(peer.stream);
    // The pipe holds the responses to a few requests; then the server cannot write, and so does not read.
    while sending.write_all(LIVEZ.as_bytes()).await.is_ok() {}
    (&mut peer.server).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_get_responses_in_order() {
    let mut peer = Peer::connect();
    let ids = ["a", "b", "c"];
    peer.send(&ids.map(|id| LIVEZ.replace("host", &format!("x-request-id: {id}\r\nhost"))).concat()).await;
    for id in ids {
        let response = peer.read_past("}").await;
        assert!(response.contains(&format!("x-request-id: {id}\r\n")), "{response}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_body_is_drained_so_that_the_connection_can_be_reused() {
    let mut peer = Peer::connect();
    let size = 3 * 1024 * 1024;
    peer.send(&format!("POST /v1/pets HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n")).await;
    peer.send(&"x".repeat(size)).await;
    assert!(peer.read_past("}").await.starts_with("HTTP/1.1 401"));
    peer.send(LIVEZ).await;
    assert!(peer.read_past("}").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_body_that_is_too_large_to_drain_closes_the_connection() {
    let mut peer = Peer::connect();
    peer.send("POST /v1/pets HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000000\r\n\r\n").await;
    assert!(peer.read_past("}").await.contains("connection: close"));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_gets_no_100_continue() {
    let mut peer = Peer::connect();
    peer.send("POST /v1/pets HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n").await;
    let response = peer.read_to_the_end().await;
    assert!(response.starts_with("HTTP/1.1 401") && response.contains("connection: close"), "{response}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_begun_to_arrive_gets_a_response_when_the_server_stops() {
    let mut peer = Peer::connect();
    let (first, second) = LIVEZ.split_at(20);
    peer.send(first).await;
    // One thread runs both sides: the server reads what was sent, and then sees the stage, when it is its turn.
    tokio::task::yield_now().await;
    peer.listener.drain();
    tokio::task::yield_now().await;
    peer.send(second).await;
    let response = peer.read_to_the_end().await;
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("connection: close"), "{response}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_in_the_socket_gets_a_response_when_the_server_stops() {
    let mut peer = Peer::connect();
    peer.send(LIVEZ).await;
    peer.read_past("}").await;
    // One thread runs both sides: the server runs when the peer waits.
    peer.send(LIVEZ).await;
    peer.listener.drain();
    assert!(peer.read_to_the_end().await.starts_with("HTTP/1.1 200"));
}

/// The beginning of an HTTP/2 connection, and a frame of an unknown type.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const UNKNOWN_FRAME: &[u8] = b"\0\0\0\xee\0\0\0\0\0";

#[tokio::test(start_paused = true)]
async fn other_tasks_run_while_frames_wait_in_the_socket() {
    let mut peer = Peer::connect_to(router(), 1024 * 1024);
    peer.stream.write_all(&[HTTP2, &UNKNOWN_FRAME.repeat(50_000)].concat()).await.unwrap();
    // One thread runs both sides: the server runs once at each yield.
    let mut received = 0;
    for _ in 0..10 {
        tokio::task::yield_now().await;
        let before = std::mem::replace(&mut received, peer.activity.state.lock().overhead);
        assert!(received <= before + 3 * READ_BUDGET, "{before}, then {received}");
    }
    assert!(received > READ_BUDGET, "{received}");
}

#[tokio::test(start_paused = true)]
async fn an_http2_peer_that_sends_frames_for_ever_is_disconnected() {
    let mut peer = Peer::connect();
    peer.stream.write_all(HTTP2).await.unwrap();
    let (mut receiving, mut sending) = tokio::io::split(peer.stream);
    tokio::spawn(async move { tokio::io::copy(&mut receiving, &mut tokio::io::sink()).await });
    let mut sent = 0;
    while sending.write_all(UNKNOWN_FRAME).await.is_ok() {
        sent += UNKNOWN_FRAME.len();
        assert!(sent < 2 * 1024 * 1024, "{sent} bytes");
    }
    peer.server.await.unwrap();
}

/// The window of the peer lets through so many bytes of each response.
async fn http2(stream: DuplexStream, window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let (requests, connection) =
        client::Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
    (requests, tokio::spawn(connection))
}

async fn ask(requests: &mut SendRequest<Bytes>, method: Method, path: &str) -> Option<Response<RecvStream>> {
    let request = Request::builder().method(method).uri(format!("http://x{path}")).body(()).unwrap();
    let (response, _) = requests.clone().ready().await.ok()?.send_request(request, true).ok()?;
    response.await.ok()
}

#[tokio::test(start_paused = true)]
async fn an_http2_peer_that_reads_no_response_is_disconnected_however_often_it_asks() {
    for window in [0, 1] {
        let peer = Peer::connect();
        let (mut requests, driver) = http2(peer.stream, window).await;
        let untaken = ask(&mut requests, Method::GET, "/openapi.json").await.unwrap();
        assert_eq!(untaken.status(), 200);
        let begun = Instant::now();
        while ask(&mut requests, Method::HEAD, "/livez").await.is_some() {
            time::sleep(Duration::from_secs(1)).await;
        }
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
        peer.server.await.unwrap();
        drop((untaken, driver));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unread_http2_response_counts_even_if_the_window_lets_nothing_through() {
    for window in [0, 1] {
        let length = 50_000;
        let page = Router::new().route("/", get(move || async move { "x".repeat(length) }));
        let peer = Peer::connect_to(page, 1024);
        let (mut requests, driver) = http2(peer.stream, window).await;
        let unread = ask(&mut requests, Method::GET, "/").await.unwrap();
        assert!(peer.listener.held.load(Relaxed) >= length, "window {window}");
        drop(unread);
        driver.abort();
        peer.server.await.unwrap();
        assert_eq!(peer.listener.held.load(Relaxed), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_http2_peer_must_read_a_response_in_the_time_that_its_size_takes() {
    for (seconds_per_kib, is_served) in [(0.1, true), (2.0, false)] {
        let peer = Peer::connect();
        let (mut requests, _driver) = http2(peer.stream, 1_024).await;
        let mut body = ask(&mut requests, Method::GET, "/openapi.json").await.unwrap().into_body();
        while let Some(Ok(piece)) = body.data().await {
            time::sleep(Duration::from_secs_f64(seconds_per_kib)).await;
            let _ = body.flow_control().release_capacity(piece.len());
        }
        assert_eq!(ask(&mut requests, Method::HEAD, "/livez").await.is_some(), is_served);
    }
}
