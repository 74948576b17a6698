//! Peers that send requests but do not read the responses: the memory that they can occupy is bounded, and is
//! released.

use std::{fs, net::SocketAddr, time::Duration};

use axum::{
    body::Bytes,
    http::{Request, Response},
};
use h2::{RecvStream, SendStream, client};
use harness::{App, wait_until};
use tokio::{
    net::TcpStream,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

const CONNECTIONS: usize = 50;
const STREAMS: usize = 127;
/// Longer than a busy machine takes for all pages.
const TIMEOUT: Duration = Duration::from_mins(3);
const MIB: u64 = 1024 * 1024;

/// An HTTP/2 connection whose streams take one byte each.
struct SlowPeer {
    taken: Vec<Response<RecvStream>>,
    driver: AbortHandle,
}

impl Drop for SlowPeer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl SlowPeer {
    /// Asks for the largest page on every stream. A connection that the service closes has fewer responses.
    async fn ask(address: SocketAddr, key: String) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut requests, connection) =
            client::Builder::new().initial_window_size(1).handshake::<_, Bytes>(stream).await.unwrap();
        let driver = tokio::spawn(connection).abort_handle();
        let mut peer = Self { taken: Vec::new(), driver };
        let mut pending = Vec::new();
        for _ in 0..STREAMS {
            let request = Request::get(format!("http://{address}/v1/pets?limit=100"))
                .header("Authorization", format!("Bearer {key}"))
                .body(())
                .unwrap();
            let Ok(ready) = requests.ready().await else { break };
            requests = ready;
            pending.extend(requests.send_request(request, true).map(|(response, _)| response));
        }
        for response in pending {
            peer.taken.extend(timeout(TIMEOUT, response).await.unwrap());
        }
        peer
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
            asking.spawn(SlowPeer::ask(app.address(), app.key.clone()));
        }
        asking.join_all().await
    });
    let held = resident(&app);
    let statuses = |status| {
        peers.iter().flat_map(|peer| &peer.taken).filter(|response| response.status() == status).count()
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
    println!("resident memory: {} MiB after the peers have gone", resident(&app) / MIB);
}

/// Opens `POST` requests on one HTTP/2 connection and sends a body on each that never ends. Returns the statuses of the
/// responses so far, and the connection.
async fn endless_bodies(address: SocketAddr, key: String) -> (Vec<u16>, Vec<SendStream<Bytes>>, AbortHandle) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut requests, connection) = client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection).abort_handle();
    let (mut bodies, mut pending) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let request = Request::post(format!("http://{address}/v1/pets"))
            .header("Authorization", format!("Bearer {key}"))
            .header("Content-Type", "application/json")
            .body(())
            .unwrap();
        let Ok(ready) = requests.ready().await else { break };
        requests = ready;
        let Ok((response, mut body)) = requests.send_request(request, false) else { break };
        let _ = body.send_data(Bytes::from(vec![b' '; 64_000]), false);
        bodies.push(body);
        pending.push(response);
    }
    let mut statuses = Vec::new();
    for response in pending {
        if let Ok(Ok(response)) = timeout(Duration::from_millis(50), response).await {
            statuses.push(response.status().as_u16());
        }
    }
    (statuses, bodies, driver)
}

#[test]
fn bodies_that_never_end_hold_little_memory() {
    let app = App::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let before = resident(&app);
    let peers = runtime.block_on(async {
        let mut sending = JoinSet::new();
        for _ in 0..CONNECTIONS {
            sending.spawn(endless_bodies(app.address(), app.key.clone()));
        }
        sending.join_all().await
    });
    let held = resident(&app);
    let busy = peers.iter().flat_map(|(statuses, ..)| statuses).filter(|status| **status == 503).count();
    println!("resident memory: {} MiB before, {} MiB held; {busy} busy", before / MIB, held / MIB);
    assert!(held < before + 160 * MIB, "{} MiB are held by bodies", held / MIB);
    assert!(busy > 0, "some bodies are rejected");
    // A client under memory pressure has a second to send its body.
    wait_until("others are served again", || app.get("/v1/pets").status == 200);
    for (_, _, driver) in peers {
        driver.abort();
    }
}

#[test]
fn a_connection_with_many_unauthenticated_requests_is_closed_and_one_with_keys_is_not() {
    let app = App::start();
    let behind_proxy = App::start_with(&["--trusted-proxy", "127.0.0.1"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let statuses = |app: &App, path: &'static str, key: Option<String>| {
        let address = app.address();
        runtime.block_on(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            let mut builder = client::Builder::new();
            let handshake = builder.initial_window_size(0).handshake::<_, Bytes>(stream);
            let (mut requests, connection) = handshake.await.unwrap();
            let driver = tokio::spawn(connection);
            let mut pending = Vec::new();
            for _ in 0..STREAMS {
                let mut request = Request::get(format!("http://{address}{path}"));
                if let Some(key) = &key {
                    request = request.header("Authorization", format!("Bearer {key}"));
                }
                let Ok(ready) = requests.ready().await else { break };
                requests = ready;
                let Ok((response, _)) = requests.send_request(request.body(()).unwrap(), true) else { break };
                pending.push(response);
            }
            let mut taken = Vec::new();
            for response in pending {
                taken.extend(timeout(TIMEOUT, response).await.unwrap());
            }
            let closed = timeout(Duration::from_secs(1), driver).await.is_ok();
            (taken.len(), closed)
        })
    };
    let (taken, closed) = statuses(&app, "/openapi.json", None);
    assert!(closed, "no page needs so many requests at once: {taken} got a response");
    let (_, closed) = statuses(&app, "/v1/pets", None);
    assert!(closed, "a response without a key counts as well");
    assert_eq!(statuses(&app, "/v1/pets", Some(app.key.clone())), (STREAMS, false));
    let shared = statuses(&behind_proxy, "/openapi.json", None);
    assert_eq!(shared, (STREAMS, false), "many clients may share the connection of a proxy");
}
