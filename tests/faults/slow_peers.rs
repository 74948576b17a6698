//! Peers that send requests but do not read the responses: the memory that they can occupy is bounded, and is
//! released.

use std::{fs, net::SocketAddr, time::Duration};

use axum::{body::Bytes, http::Request};
use h2::{
    SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use harness::{App, wait_until};
use tokio::{
    net::TcpStream,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

const CONNECTIONS: usize = 50;
const STREAMS: usize = 127;
/// Longer than a busy machine takes for all pages.
const TIMEOUT: Duration = Duration::from_mins(3);
const MIB: u64 = 1024 * 1024;

/// An HTTP/2 connection whose streams take so many bytes each. Closed when dropped.
struct Peer {
    address: SocketAddr,
    requests: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Peer {
    async fn connect(address: SocketAddr, window: u32) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) =
            client::Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
        Self { address, requests, driver: tokio::spawn(connection) }
    }

    /// Sends the same request on every stream: fewer if the service closes the connection.
    async fn send(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
    ) -> Vec<(ResponseFuture, SendStream<Bytes>)> {
        let mut sent = Vec::new();
        for _ in 0..STREAMS {
            let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
            if let Some(key) = key {
                request = request.header("Authorization", format!("Bearer {key}"));
            }
            let request = request.header("Content-Type", "application/json").body(()).unwrap();
            let Ok(mut ready) = self.requests.clone().ready().await else { break };
            let Ok(stream) = ready.send_request(request, method == "GET") else { break };
            sent.push(stream);
        }
        sent
    }
}

fn resident(app: &App) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", app.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A service whose largest page takes 85 KB.
fn with_large_pages() -> App {
    let app = App::start();
    let name = "🐈".repeat(200);
    for _ in 0..100 {
        app.add(&name);
    }
    app
}

#[test]
fn unread_responses_hold_little_memory_and_release_it() {
    let app = with_large_pages();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let before = resident(&app);
    let peers = runtime.block_on(async {
        let mut asking = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (address, key) = (app.address(), app.key.clone());
            asking.spawn(async move {
                let peer = Peer::connect(address, 1).await;
                let mut taken = Vec::new();
                for (response, _) in peer.send("GET", "/v1/pets?limit=100", Some(&key)).await {
                    taken.extend(timeout(TIMEOUT, response).await.unwrap());
                }
                (peer, taken)
            });
        }
        asking.join_all().await
    });
    let held = resident(&app);
    let statuses = |status| {
        peers.iter().flat_map(|(_, taken)| taken).filter(|response| response.status() == status).count()
    };
    let (served, busy) = (statuses(200), statuses(503));
    println!(
        "resident memory: {} MiB before, {} MiB held; {served} pages, {busy} busy",
        before / MIB,
        held / MIB
    );
    assert!(held < before + 160 * MIB, "{} MiB are held by {served} pages", held / MIB);
    assert!(served > 0 && busy > 0, "{served} pages, {busy} busy");
    assert_eq!(app.probe("/livez").status, 200, "probes respond under load");

    drop(peers);
    wait_until("others are served again", || app.get("/v1/pets?limit=100").status == 200);
    // The allocator returns memory to the system while it is used, so the service is not left idle.
    wait_until("the memory is given back", || {
        app.get("/v1/pets?limit=100");
        resident(&app) < before + 48 * MIB
    });
}

#[test]
fn bodies_that_never_end_hold_little_memory() {
    let app = App::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let before = resident(&app);
    let peers = runtime.block_on(async {
        let mut sending = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (address, key) = (app.address(), app.key.clone());
            sending.spawn(async move {
                let peer = Peer::connect(address, 65_535).await;
                let (mut bodies, mut busy) = (Vec::new(), 0);
                for (response, mut body) in peer.send("POST", "/v1/pets", Some(&key)).await {
                    let _ = body.send_data(Bytes::from(vec![b' '; 64_000]), false);
                    bodies.push((response, body));
                }
                for (response, _) in &mut bodies {
                    let response = timeout(Duration::from_millis(50), response).await;
                    busy +=
                        usize::from(response.is_ok_and(|done| done.is_ok_and(|done| done.status() == 503)));
                }
                (peer, bodies, busy)
            });
        }
        sending.join_all().await
    });
    let held = resident(&app);
    let busy: usize = peers.iter().map(|(_, _, busy)| busy).sum();
    println!("resident memory: {} MiB before, {} MiB held; {busy} busy", before / MIB, held / MIB);
    assert!(held < before + 160 * MIB, "{} MiB are held by bodies", held / MIB);
    assert!(busy > 0, "some bodies are rejected");
    // A client under memory pressure has a second to send its body.
    wait_until("others are served again", || app.get("/v1/pets").status == 200);
}

#[test]
fn a_connection_with_many_unauthenticated_requests_is_closed_and_one_with_keys_is_not() {
    let app = App::start();
    let behind_proxy = App::start_with(&["--trusted-proxy", "127.0.0.1"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let statuses = |app: &App, path: &str, key: Option<&str>| {
        runtime.block_on(async {
            let mut peer = Peer::connect(app.address(), 0).await;
            let mut taken = Vec::new();
            for (response, _) in peer.send("GET", path, key).await {
                taken.extend(timeout(TIMEOUT, response).await.unwrap());
            }
            let closed = timeout(Duration::from_secs(1), &mut peer.driver).await.is_ok();
            (taken.len(), closed)
        })
    };
    let (taken, closed) = statuses(&app, "/openapi.json", None);
    assert!(closed, "no page needs so many requests at once: {taken} got a response");
    let (_, closed) = statuses(&app, "/v1/pets", None);
    assert!(closed, "a response without a key counts as well");
    assert_eq!(statuses(&app, "/v1/pets", Some(&app.key)), (STREAMS, false));
    let shared = statuses(&behind_proxy, "/openapi.json", None);
    assert_eq!(shared, (STREAMS, false), "many clients may share the connection of a proxy");
}
