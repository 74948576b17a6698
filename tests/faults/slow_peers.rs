//! Peers that leave requests unfinished or responses unread: the memory that they can occupy is bounded, and is released.

use std::{
    future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Bytes;
use harness::{App, wait_until};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use super::hostile_clients::{
    flood::Flood,
    peers::{Attack, GROWTH_MAX, MIB, Peer, STREAMS, assert_growth, resident},
};
use crate::operations::tls::start_secure;

/// Longer than a busy machine takes for all pages.
const TIMEOUT: Duration = Duration::from_mins(3);

/// A service, and a key of a client that is not the one of the service.
fn start() -> (App, String) {
    let app = App::start();
    let key = app.issue_active_key(&["--name", "peer"]);
    (app, key)
}

#[test]
fn unread_responses_hold_little_memory_and_release_it() {
    let (app, key) = start();
    // A page takes 85 KB.
    let name = "🐈".repeat(200);
    for _ in 0..100 {
        app.add(&name);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let before = resident(&app);
    let peers = runtime.block_on(async {
        let mut asking = JoinSet::new();
        // More than three times the limit on memory.
        for _ in 0..20 {
            let (address, key) = (app.address(), key.clone());
            asking.spawn(async move {
                let peer = Peer::connect(address, 1).await?;
                let (mut sent, mut taken) = (Vec::new(), Vec::new());
                for _ in 0..STREAMS {
                    sent.extend(peer.send("GET", "/v1/pets?limit=100", &key).await);
                }
                for (response, _) in sent {
                    taken.extend(timeout(TIMEOUT, response).await.unwrap());
                }
                Some((peer, taken))
            });
        }
        asking.join_all().await
    });
    let held = resident(&app);
    let pages =
        peers.iter().flatten().flat_map(|(_, taken)| taken).filter(|page| page.status() == 200).count();
    println!("resident memory: {} MiB before, {} MiB held; {pages} pages", before / MIB, held / MIB);
    assert!(held < before + GROWTH_MAX, "{} MiB are held by {pages} pages", held / MIB);
    assert!(pages > 0, "the peers were served");
    assert_eq!(app.get("/v1/pets?limit=100").status, 200, "other clients are served");
    assert_eq!(app.probe("/livez").status, 200, "probes respond under load");

    drop(peers);
    // The allocator returns memory to the system while it is used, so the service is not left idle.
    wait_until("the memory is given back", || {
        app.get("/v1/pets?limit=100");
        resident(&app) < before + 48 * MIB
    });
}

#[test]
fn bodies_that_never_end_hold_little_memory() {
    async fn send(address: SocketAddr, key: String, bytes: Bytes, sent: Arc<AtomicUsize>) {
        let Some(peer) = Peer::connect(address, 65_535).await else { return };
        let mut bodies = Vec::new();
        for _ in 0..STREAMS {
            let Some((response, mut body)) = peer.send("POST", "/v1/pets", &key).await else { return };
            if body.send_data(bytes.clone(), false).is_ok() {
                sent.fetch_add(1, Relaxed);
            }
            bodies.push((response, body));
        }
        peer.closed().await;
    }
    let (app, key) = start();
    let (before, sent) = (resident(&app), Arc::new(AtomicUsize::new(0)));
    let (address, counted, bytes) = (app.address(), sent.clone(), Bytes::from(vec![b' '; 64_000]));
    let _attack = Attack::start(60, move || send(address, key.clone(), bytes.clone(), counted.clone()));
    assert_growth(&app, before, GROWTH_MAX, || sent.load(Relaxed) >= 60 * STREAMS);
}

#[test]
fn heads_without_bodies_hold_little_memory() {
    assert_heads_hold_little_memory(Flood::of_large_heads);
}

#[test]
fn compressed_heads_without_bodies_hold_little_memory() {
    assert_heads_hold_little_memory(Flood::of_compressed_heads);
}

#[test]
fn unread_files_over_tls_hold_little_memory() {
    const CONNECTIONS: usize = 600;
    /// 96 KiB each, and what the allocator needs at first.
    const CONNECTIONS_MAX: u64 = CONNECTIONS as u64 * 96 * 1024 + 8 * MIB;
    async fn request(address: SocketAddr, config: Arc<ClientConfig>, done: Arc<AtomicUsize>) {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = TlsConnector::from(config).connect(name, stream).await.unwrap();
        let requests = "GET /docs/swagger-ui.js HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4);
        stream.write_all(requests.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        done.fetch_add(1, Relaxed);
        future::pending::<()>().await;
    }
    let app = start_secure(&[]);
    let authority = CertificateDer::from_pem_file(app.directory().join("ca.pem")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (before, done) = (resident(&app), Arc::new(AtomicUsize::new(0)));
    let (address, config, counted) = (app.address(), Arc::new(config), done.clone());
    let _attack = Attack::start(CONNECTIONS, move || request(address, config.clone(), counted.clone()));
    assert_growth(&app, before, CONNECTIONS_MAX, || done.load(Relaxed) >= CONNECTIONS);
}

fn assert_heads_hold_little_memory(flood: fn(&str) -> Flood) {
    const CONNECTIONS: usize = 254;
    let (app, key) = start();
    let (before, done) = (resident(&app), Arc::new(AtomicUsize::new(0)));
    let (address, counted, flood) = (app.address(), done.clone(), flood(&key));
    let _attack = Attack::start(CONNECTIONS, move || flood.clone().run(address, counted.clone()));
    assert_growth(&app, before, GROWTH_MAX, || done.load(Relaxed) >= CONNECTIONS);
}
