//! The listener: accepts connections up to a limit, survives running out of file descriptors, and shuts down
//! gracefully.

mod admission;
mod connection;
mod instrumented;
mod timeouts;
mod tls;

use std::{io, sync::Arc, time::Duration};

use axum::{
    Router,
    response::IntoResponse as _,
    serve::{Listener as _, ListenerExt as _},
};
use futures_util::future::BoxFuture;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time,
};
use tokio_util::either::Either;

use self::{
    connection::{Connection, Shared},
    timeouts::Activity,
};
use super::{
    error::ApiError,
    middleware::client_address::{is_trusted, network},
    service::Service,
};

pub use tls::{Tls, TlsError};

pub(super) use admission::Admission;
pub(super) use instrumented::DRAIN_MAX;
pub(super) use timeouts::{Extent, HELD_MAX, InFlightRequest};

/// How long a rejected client may take to read its response.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// A socket that accepts connections.
pub struct Listener {
    /// The listening socket.
    pub tcp: TcpListener,
    /// Serves HTTPS with this certificate; without it, plain HTTP.
    pub tls: Option<Arc<Tls>>,
}

/// Limits on connections and on the time that clients may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of open connections. At the limit, the oldest unauthenticated connection without a recent
    /// request is closed; if there is none, the new one gets 503.
    pub connections_max: usize,
    /// Maximum number of open connections per client address; further ones get 503. Does not apply to trusted
    /// proxies.
    pub connections_per_address: Option<usize>,
    /// Maximum number of rejected connections that are being sent a 503; further ones are closed without a response.
    pub rejections_max: usize,
    /// Timeout for the head of a request, from its first byte or from the beginning of the connection.
    pub head_timeout: Duration,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// How long a client may stop reading a response.
    pub write_timeout: Duration,
    /// How long requests in flight may take to finish after the shutdown signal.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address: None,
            rejections_max: 256,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown` completes, then finishes requests in flight within [`Settings::drain`]. `name` is that of the
/// listener in the metrics.
pub(super) async fn run(
    name: &'static str,
    Listener { tcp, tls }: Listener,
    router: Router,
    service: Arc<Service>,
    settings: Settings,
    mut shutdown: BoxFuture<'static, ()>,
) {
    let admission = Arc::new(Admission::new(name, &settings));
    service.listeners.lock().push(admission.clone());
    let shared = Arc::new(Shared::new(router, service.clone(), settings));
    let rejections = Arc::new(Semaphore::new(settings.rejections_max));
    let (drain, draining) = watch::channel(false);
    let mut connections = JoinSet::new();
    // Responses are written whole, so delaying a segment gains nothing. A failure does no harm.
    let mut tcp = tcp.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            // axum skips errors of a single connection. It logs any other error and retries after a second, or as soon as
            // a connection ends.
            accepted = tcp.accept() => accepted,
        };
        let peer = peer.ip().to_canonical();
        let is_trusted = is_trusted(&service.site.trusted_proxies, peer);
        let client = (!is_trusted).then(|| network(peer));
        match admission.admit(client, Activity::new(peer, service.held.clone())).await {
            Ok(slot) => {
                let connection = Connection { shared: shared.clone(), slot };
                let tls = tls.clone();
                let stream = async move {
                    Ok(match tls {
                        None => Either::Left(stream),
                        Some(tls) => Either::Right(Box::new(tls.accept(stream).await?)),
                    })
                };
                connections.spawn(connection.run(stream, draining.clone()));
            }
            // A response would need a TLS handshake, which costs more than it is worth.
            Err(_) if tls.is_some() => {}
            Err(reason) => {
                if let Ok(permit) = rejections.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = time::timeout(REJECTION_TIMEOUT, reject(stream, reason)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
    drop(tcp);
    service.drain();
    drain.send_replace(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if time::timeout(settings.drain, drained).await.is_err() {
        tracing::warn!(target: "petstore::http", connections = connections.len(), "closing connections that did not finish in time");
        connections.shutdown().await;
    }
}

/// Sends a 503 without reading the request, and waits for the client to close: closing on unread bytes would reset the
/// connection and discard the response.
async fn reject(mut stream: TcpStream, reason: &'static str) -> io::Result<()> {
    let error = ApiError::Busy(reason);
    let (status, body) = (error.status(), error.body());
    let mut response = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in error.into_response().headers() {
        response.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    response.extend(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).into_bytes());
    response.extend(body);
    stream.write_all(&response).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
