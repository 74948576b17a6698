//! The listener: accepts connections, survives running out of file descriptors, and shuts down gracefully.
//!
//! Reading order: `connection` (one connection), `activity` (its memory and its deadlines), `eviction` (which connection
//! is closed when slots or memory run out).

mod activity;
mod connection;
mod eviction;
mod tls;

use std::{io, net::SocketAddr, sync::Arc};

use axum::{Router, serve};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time,
};

use self::connection::Socket;

pub(super) use activity::{InFlightRequest, Listener};
pub use tls::{Tls, TlsError};

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

/// Serves until `shutdown` completes and requests in flight have finished, for which they get limited time.
pub(super) async fn run(
    mut tcp: TcpListener,
    listener: &Arc<Listener>,
    router: Router,
    mut shutdown: impl Future<Output = ()> + Unpin,
) {
    let limits = listener.limits;
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            // axum skips errors of a single connection. It logs any other error and retries after a second, or as soon as
            // a connection ends. Evicted connections have to close their sockets first.
            accepted = serve::Listener::accept(&mut tcp), if connections.len() <= limits.connections_max => accepted,
        };
        let activity = listener.connect(peer.ip().to_canonical());
        // The kernel would keep what the client has not read for minutes. A failure means that the connection has ended.
        let discard_unread = |stream: &TcpStream| drop(stream.set_zero_linger());
        let socket = Socket { stream, activity, discard_unread, received: 0 };
        connections.spawn(Box::pin(connection::serve(socket, router.clone())));
    }
    drop(tcp);
    listener.drain();
    let drained = async { while connections.join_next().await.is_some() {} };
    if time::timeout(limits.drain, drained).await.is_err() {
        tracing::warn!(target: "petstore::http", connections = connections.len(), "closing connections that did not finish in time");
        connections.shutdown().await;
    }
}

#[cfg(test)]
pub(super) mod tests;
