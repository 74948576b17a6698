//! The listener, over real sockets.

use std::{net::Ipv4Addr, time::Duration};

use axum::http::Request;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use super::{activity::Activity, *};
use crate::{
    access::{Scopes, api_keys::ApiKeys},
    http::{AppState, HttpSettings, ListenerSettings, TrustedProxy, public, serve},
};

const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
const LIST: &[u8] = b"GET /v1/pets HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n\r\n";

/// The state of a service that accepts the key `k`.
pub(super) fn state(settings: HttpSettings) -> Arc<AppState> {
    Arc::new(AppState::new(ApiKeys::of([("k", Scopes::READ_WRITE)]), settings, None, || 0))
}

pub(super) fn router() -> Router {
    public(&state(HttpSettings::default()))
}

/// A listener without a socket.
pub(super) fn listener(limits: ListenerSettings, proxies: &[TrustedProxy]) -> Arc<Listener> {
    let settings = HttpSettings { trusted_proxies: proxies.to_vec(), ..HttpSettings::default() };
    Listener::new("test", limits, &settings, None, |_, _| {})
}

/// A new connection of a client on this machine.
pub(super) fn connection(listener: &Arc<Listener>) -> Arc<Activity> {
    listener.connect(Ipv4Addr::LOCALHOST.into())
}

/// A request in flight, for tests that call a router without a connection.
pub(in crate::http) fn in_flight() -> Arc<InFlightRequest> {
    connection(&listener(ListenerSettings::default(), &[])).begin_request(&Request::new(()))
}

struct Server {
    address: SocketAddr,
    state: Arc<AppState>,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

fn start(drain: Duration) -> Server {
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let limits = ListenerSettings { drain, ..ListenerSettings::default() };
    let state = state(HttpSettings { public: limits, ..HttpSettings::default() });
    let (shutdown, stop) = oneshot::channel();
    let stopped = Box::pin(async { stop.await.unwrap() });
    let task = tokio::spawn(serve(listener, state.clone(), stopped));
    Server { address, state, shutdown, task }
}

impl Server {
    /// A connection that is known to be accepted: it has had a response. There is no store yet.
    async fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(LIST).await.unwrap();
        let mut response = [0; 15];
        stream.read_exact(&mut response).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 503 Se");
        stream
    }
}

#[tokio::test]
async fn a_stopping_server_closes_idle_connections_and_returns() {
    let server = start(Duration::from_secs(10));
    let mut idle = server.connect().await;
    server.shutdown.send(()).unwrap();
    server.task.await.unwrap();
    assert!(server.state.is_draining());
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "the socket is closed");
}

#[tokio::test]
async fn connections_that_do_not_finish_in_time_are_closed() {
    let server = start(Duration::ZERO);
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(&LIVEZ[..20]).await.unwrap();
    let _accepted_after_it = server.connect().await;
    server.shutdown.send(()).unwrap();
    server.task.await.unwrap();
    // The peer sees the end, or a reset when what it sent was never read; but it need not wait for it.
    let mut response = Vec::new();
    let ended = timeout(Duration::from_secs(5), slow.read_to_end(&mut response)).await;
    assert!(ended.is_ok() && response.is_empty(), "{ended:?}, {response:?}");
}

#[tokio::test]
async fn an_unauthenticated_client_does_not_delay_the_stop() {
    let server = start(Duration::from_hours(1));
    let half_a_head = &LIVEZ[..20];
    let half_a_body = b"POST /v1/pets HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{";
    let http2_without_acknowledgements = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut open = Vec::new();
    for bytes in [half_a_head, half_a_body, http2_without_acknowledgements] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        open.push(stream);
    }
    let _accepted_after_them = server.connect().await;
    server.shutdown.send(()).unwrap();
    timeout(Duration::from_secs(10), server.task).await.unwrap().unwrap();
}
