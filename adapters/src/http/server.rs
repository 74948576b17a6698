//! The listener: accepts connections up to a limit, survives running out of file descriptors, and shuts down
//! gracefully.

mod connection;
mod per_address;
mod response_body;
mod strangers;
mod timeouts;
mod tls;

use std::{
    future::ready,
    io,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::response::IntoResponse as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time,
};
use tokio_rustls::server::TlsStream;

use self::{
    connection::{Connections, Stage},
    per_address::PerAddress,
};
use super::{
    client_address::{Network, is_trusted},
    error::Problem,
    limits::Settings,
    route::Routers,
    service::Service,
};

pub use tls::{Tls, TlsError};

pub(super) use timeouts::{Endless, InFlight, Unsent};

/// How long to wait for the place of a connection that was told to leave. It has nothing to finish.
const LEAVING_PATIENCE: Duration = Duration::from_millis(100);

/// How long a refused peer may take to read why.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// Where connections come from.
pub struct Listener {
    /// The address that is listened on.
    pub tcp: TcpListener,
    /// Speaks TLS with this certificate; without it, plain HTTP.
    pub tls: Option<Arc<Tls>>,
}

/// How many connections a listener has, for the metrics.
pub(super) struct Occupancy {
    pub(super) name: &'static str,
    pub(super) most: usize,
    places: Arc<Semaphore>,
    /// Refused because all places were taken.
    pub(super) refused_full: AtomicU64,
    /// Refused because their address had too many.
    pub(super) refused_address: AtomicU64,
}

impl Occupancy {
    pub(super) fn open(&self) -> usize {
        self.most - self.places.available_permits()
    }
}

/// How long to wait before accepting again when the system has no more file descriptors: first and at most.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Serves until `shutdown` is done, then finishes what is in flight within [`Settings::drain`].
pub(super) async fn run(
    Listener { tcp, tls }: Listener,
    routers: Routers,
    service: Arc<Service>,
    settings: Settings,
    shutdown: impl Future<Output = ()>,
) {
    let name = routers.listener;
    let connections = Arc::new(Connections::new(routers, service.clone(), settings));
    let places_max = u32::try_from(settings.connections_max).unwrap_or(u32::MAX);
    let places = Arc::new(Semaphore::new(places_max as usize));
    let occupancy = Arc::new(Occupancy {
        name,
        most: places_max as usize,
        places: places.clone(),
        refused_full: AtomicU64::new(0),
        refused_address: AtomicU64::new(0),
    });
    service.listeners.lock().push(occupancy.clone());
    let per_address = Arc::<PerAddress>::default();
    let refusals = Arc::new(Semaphore::new(settings.refusals_max));
    let (stage, stages) = watch::channel(Stage::Serving);
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&tcp) => accepted,
        };
        let limit = settings.connections_per_address;
        let limit = limit.filter(|_| !is_trusted(&service.client_limits.trusted_proxies, peer));
        let counted = limit.map(|most| per_address.count(Network::of(peer), most));
        if let Some(None) = counted {
            occupancy.refused_address.fetch_add(1, Relaxed);
            tell(&refusals, tls.as_ref(), stream, "too many connections are open from this address");
            continue;
        }
        let mut place = places.clone().try_acquire_owned();
        if place.is_err()
            && connections.strangers.send_one_away()
            && let Ok(Ok(freed)) = time::timeout(LEAVING_PATIENCE, places.clone().acquire_owned()).await
        {
            place = Ok(freed);
        }
        if let Ok(place) = place {
            let (connections, stages, tls) = (connections.clone(), stages.clone(), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => connections.run(peer, ready(Some(stream)), stages).await,
                    Some(tls) => {
                        let stream = handshake(&tls, stream, settings, stages.clone());
                        connections.run(peer, stream, stages).await;
                    }
                }
                drop((place, counted));
            });
        } else {
            occupancy.refused_full.fetch_add(1, Relaxed);
            tell(&refusals, tls.as_ref(), stream, "too many connections are open");
        }
    }
    drop(tcp);
    service.drain();
    stage.send_replace(Stage::Leaving);
    if time::timeout(settings.drain, all_ended(&places, places_max)).await.is_err() {
        let left = places_max as usize - places.available_permits();
        tracing::warn!("closing {left} connections that did not finish in time");
        stage.send_replace(Stage::Gone);
        all_ended(&places, places_max).await;
    }
}

/// The next connection. A failure to accept is never the end: it is the peer's, or it passes.
async fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    let (mut pause, longest) = ACCEPT_PAUSE;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Answers are written whole, so waiting for more to send only delays them.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!("cannot set TCP_NODELAY: {error}");
                }
                return (stream, peer.ip().to_canonical());
            }
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                tracing::warn!("cannot accept connections: {error}");
                time::sleep(pause).await;
                pause = longest.min(pause * 2);
            }
        }
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// The TLS connection, unless the peer fails, takes as long as no head of a request may, or the service leaves.
async fn handshake(
    tls: &Tls,
    stream: TcpStream,
    settings: Settings,
    mut stages: watch::Receiver<Stage>,
) -> Option<TlsStream<TcpStream>> {
    let made = tokio::select! {
        made = time::timeout(settings.head_timeout, tls.accept(stream)) => made,
        _ = stages.wait_for(|stage| *stage != Stage::Serving) => return None,
    };
    match made {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!("connection closed: no TLS connection: {error}"),
        Err(_) => tracing::debug!("connection closed: the peer took too long to make a TLS connection"),
    }
    None
}

/// Tells a peer why it is refused, unless too many are being told.
fn tell(refusals: &Arc<Semaphore>, tls: Option<&Arc<Tls>>, stream: TcpStream, reason: &'static str) {
    // A refusal could not be read without a handshake, which would cost more than it is worth.
    if tls.is_none()
        && let Ok(place) = refusals.clone().try_acquire_owned()
    {
        tokio::spawn(async move {
            // Who does not listen cannot be told.
            let _ = time::timeout(REFUSAL_PATIENCE, refuse(stream, reason)).await;
            drop(place);
        });
    }
}

/// Says that there is no room, without reading what is asked, and waits for the peer to hang up: closing on
/// unread bytes would take the answer back.
async fn refuse(mut stream: TcpStream, reason: &'static str) -> io::Result<()> {
    let problem = Problem::Busy(reason);
    let (status, body) = (problem.status(), problem.body());
    let mut answer = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in problem.into_response().headers() {
        answer.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    answer.extend(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).into_bytes());
    answer.extend(body);
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Returns when every place is free again.
async fn all_ended(places: &Semaphore, count: u32) {
    // Nobody closes the semaphore, so this is all permits and no error.
    let _ = places.acquire_many(count).await;
}

#[cfg(test)]
mod tests;
