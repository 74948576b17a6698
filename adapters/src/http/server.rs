//! The listener: accepts connections, survives running out of file descriptors, and shuts down gracefully.
//!
//! Reading order: `connection` (one connection), `activity` (its memory and its deadlines), `eviction` (which connection
//! is closed when slots or memory run out).

mod activity;
mod connection;
mod eviction;
mod request_body;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, serve::Listener};
use futures_util::future::BoxFuture;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinSet,
    time,
};

use self::{activity::Activity, connection::Socket};
use super::{app_state::AppState, middleware::client_address::is_trusted};

pub use tls::{Tls, TlsError};

pub(super) use activity::InFlightRequest;
pub(super) use eviction::{MEMORY_MAX, OpenConnections};
pub(super) use request_body::DRAIN_MAX;

/// The kernel's buffers for sent data and for received data, in bytes: they count as memory of the service.
const SOCKET_BUFFER: u32 = 128 * 1024;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4 * 1024;

/// Listens on an address, for [`serve`](super::serve).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit these. Responses are written whole, so delaying a segment gains nothing.
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_nodelay(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Limits on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Maximum number of open connections per client address. Does not apply to trusted proxies.
    pub connections_per_address: Option<usize>,
    /// How long requests in flight may take to finish after the shutdown signal.
    pub drain: Duration,
}

/// Serves until `shutdown` completes, then finishes requests in flight within [`ListenerSettings::drain`]. `name` is that of the
/// listener in the metrics.
pub(super) async fn run(
    name: &'static str,
    mut listener: TcpListener,
    router: Router,
    state: Arc<AppState>,
    settings: ListenerSettings,
    mut shutdown: BoxFuture<'static, ()>,
) {
    let open = Arc::new(OpenConnections::new(name, settings.connections_max));
    state.listeners.lock().push(open.clone());
    let (drain, draining) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            // axum skips errors of a single connection. It logs any other error and retries after a second, or as soon as
            // a connection ends. Evicted connections have to close their sockets first.
            accepted = Listener::accept(&mut listener), if connections.len() <= settings.connections_max => accepted,
        };
        let peer = peer.ip().to_canonical();
        let is_proxy = is_trusted(&state.settings.trusted_proxies, peer);
        let activity = Activity::begin(&open, peer, settings.connections_per_address.filter(|_| !is_proxy));
        // The kernel would keep what the client has not read for minutes. A failure means that the connection has ended.
        let socket = Socket::new(stream, activity, |stream| drop(stream.set_zero_linger()));
        connections.spawn(connection::serve(socket, router.clone(), state.clone(), draining.clone()));
    }
    drop(listener);
    state.drain();
    drain.send_replace(true);
    open.drain();
    let drained = async { while connections.join_next().await.is_some() {} };
    if time::timeout(settings.drain, drained).await.is_err() {
        tracing::warn!(target: "petstore::http", connections = connections.len(), "closing connections that did not finish in time");
        connections.shutdown().await;
    }
}

#[cfg(test)]
pub(super) mod tests;
