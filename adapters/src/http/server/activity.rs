//! The activity of one connection: its requests in flight, the memory that they hold, and the deadlines of its client.
//!
//! hyper does not disconnect a client that sends nothing, its header timeout also ends idle connections, and it has no
//! write timeout. Therefore [`Activity`] records received bytes, requests and the chunks of responses, and
//! [`Activity::expired`] ends the connection at its deadline. A byte that the client sends or reads extends no deadline.

use std::{
    future::poll_fn,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Poll, ready},
    time::Duration,
};

use application::OwnerId;
use axum::{
    body::Bytes,
    http::{HeaderName, HeaderValue, Request, Version},
};
use futures_util::task::AtomicWaker;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::{self, Instant};
use tokio_util::sync::PollSemaphore;

use super::eviction::{Group, MEMORY_FREED, MEMORY_MAX, OpenConnections};
use crate::http::middleware::client_address::network;

/// Timeout for a request head and the TLS handshake, from the accept, the first byte or the previous response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may be idle. Proxies close their idle connections after a minute, and should be first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Timeout for reading a response, in addition to the time that its size takes at this rate, in bytes per second.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const READ_RATE_MIN: u64 = 16 * 1024;

/// How long an unproven connection may last when the service stops.
const UNPROVEN_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The memory of a request, as measured with many small ones, and of each header field in addition to its name and value.
const REQUEST_COST: usize = 4 * 1024;
const FIELD_COST: usize = 128;

/// Maximum number of bytes that hyper holds before it has parsed them: an incomplete head and an incomplete frame.
const UNPARSED_MAX: usize = 32 * 1024;

/// Bytes after which a connection lets others run. hyper and the TLS library read until the socket is empty.
pub(super) const READ_BUDGET: usize = 8 * 1024;

/// Maximum overhead of a connection: bytes beyond those that its requests, bodies and responses account for.
const OVERHEAD_MAX: usize = 1024 * 1024;

/// The bytes that a client may send for each byte of a body that it sends, and of a response that it reads: frames and TLS
/// records of one byte each. A request accounts for as many bytes as the memory that it is counted with.
const BYTES_PER_BYTE: usize = 64;

/// The activity of one connection, shared by its stream, its requests and its watchdog.
pub(super) struct Activity {
    /// The network of the client, and a number in the order of the accepts.
    pub(super) key: (IpNet, u64),
    /// The address of the client, or of a proxy.
    pub(super) peer: IpAddr,
    pub(super) accepted: Instant,
    pub(super) state: Mutex<ConnectionState>,
    listener: Arc<OpenConnections>,
    watchdog: AtomicWaker,
}

#[derive(Default)]
pub(super) struct ConnectionState {
    /// The owner of the last accepted key.
    owner: Option<OwnerId>,
    in_flight: usize,
    proven_in_flight: usize,
    /// Whether the last request that ended had an accepted key.
    last_was_proven: bool,
    /// When the last request in flight ended.
    idle_since: Option<Instant>,
    /// The version of the last request.
    version: Option<Version>,
    /// The memory of the connection, in bytes.
    pub(super) held: usize,
    /// The part of it that was received, and belongs neither to a request nor to a body yet.
    unparsed: usize,
    /// When the first of these bytes arrived.
    first_byte: Option<Instant>,
    /// The bytes received beyond those that are accounted for.
    pub(super) overhead: usize,
    /// The bytes of all responses so far, and those that the client has read.
    sent: u64,
    read: u64,
    unread: Vec<UnreadChunk>,
    next_chunk: u64,
    draining: Option<Instant>,
    pub(super) is_evicted: bool,
}

/// A chunk of a response that the client has not read.
struct UnreadChunk {
    id: u64,
    since: Instant,
    /// [`ConnectionState::read`] when it began.
    read_before: u64,
}

impl ConnectionState {
    /// A connection is proven while a request with an accepted key is in flight. If none is, the last request decides
    /// that has ended.
    fn is_proven(&self) -> bool {
        self.proven_in_flight > 0 || self.last_was_proven
    }

    pub(super) fn group(&self, network: IpNet) -> Group {
        let owner = self.owner.as_ref().filter(|_| self.is_proven());
        owner.map_or(Group::Address(network), |owner| Group::Owner(owner.clone()))
    }

    /// The order in which connections of a group lose their slots. Unproven ones: as they were accepted. Proven ones: since
    /// when they wait for a request, or for a response to be read; those that wait for the service come last.
    pub(super) fn eviction_order(&self, accepted: Instant) -> (bool, Instant) {
        let unread = self.unread.iter().map(|chunk| chunk.since).min();
        let waiting = if self.in_flight == 0 { self.idle_since } else { unread };
        let since = if self.is_proven() { waiting } else { Some(accepted) };
        (since.is_none(), since.unwrap_or(accepted))
    }

    fn set_unparsed(&mut self, bytes: usize) {
        self.held = self.held + bytes - self.unparsed;
        self.unparsed = bytes;
        self.first_byte = (bytes > 0).then(|| self.first_byte.unwrap_or_else(Instant::now));
    }

    fn account_for(&mut self, bytes: usize) {
        self.overhead = self.overhead.saturating_sub(bytes);
    }

    /// When the client will have taken too long. There is no deadline while it waits for the service; that of a request
    /// body is set by its reader.
    fn deadline(&self, accepted: Instant) -> Option<Instant> {
        let idle_since = self.idle_since.unwrap_or(accepted);
        // Only hyper can tell the head of an HTTP/2 request from other frames.
        let may_be_head = self.version.is_none_or(|version| version < Version::HTTP_2);
        let deadline = if self.in_flight > 0 {
            // Everything that was unread when the chunk began, or began since, has to be read.
            let to_read = |chunk: &UnreadChunk| (self.sent - chunk.read_before) / READ_RATE_MIN;
            let timeout = |chunk| RESPONSE_TIMEOUT + Duration::from_secs(to_read(chunk));
            self.unread.iter().map(|chunk| chunk.since + timeout(chunk)).min()
        } else if let Some(first_byte) = self.first_byte.filter(|_| may_be_head) {
            Some(first_byte.max(idle_since) + HEAD_TIMEOUT)
        } else if self.version.is_none() {
            Some(accepted + HEAD_TIMEOUT)
        } else {
            Some(idle_since + IDLE_TIMEOUT)
        };
        let drained = self.draining.filter(|_| !self.is_proven()).map(|since| since + UNPROVEN_DRAIN_TIMEOUT);
        [deadline, drained].into_iter().flatten().min()
    }
}

impl Activity {
    /// Begins a connection. Evicts others if all slots of the listener, or as many as its address may have, are taken.
    pub(super) fn begin(
        listener: &Arc<OpenConnections>,
        peer: IpAddr,
        address_limit: Option<usize>,
    ) -> Arc<Self> {
        let connection = Arc::new(Self {
            key: (network(peer), listener.accepted.fetch_add(1, Relaxed)),
            peer,
            accepted: Instant::now(),
            state: Mutex::default(),
            listener: listener.clone(),
            watchdog: AtomicWaker::new(),
        });
        listener.insert(connection.clone(), address_limit);
        connection
    }

    /// Frees the slot of the connection. Requests in flight keep their memory until they end. Returns whether something
    /// is cut off that the client has not read.
    pub(super) fn end(&self) -> bool {
        self.listener.remove(self);
        self.update(|state| {
            state.set_unparsed(0);
            state.is_evicted || !state.unread.is_empty()
        })
    }

    /// Closes the connection. The listener does not count its memory any more.
    pub(super) fn evict(&self) {
        let mut state = self.state.lock();
        state.is_evicted = true;
        self.listener.held.fetch_sub(state.held, Relaxed);
        self.listener.evicted_held.fetch_add(state.held, Relaxed);
        self.watchdog.wake();
    }

    /// The service stops.
    pub(super) fn drain(&self) {
        self.state.lock().draining = Some(Instant::now());
        self.watchdog.wake();
    }

    /// Changes the state. The memory of the listener follows.
    fn update<T>(&self, change: impl FnOnce(&mut ConnectionState) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.held;
        let changed = change(&mut state);
        // The difference may be negative.
        let difference = state.held.wrapping_sub(before);
        let (OpenConnections { held, evicted_held, .. }, is_evicted) = (&*self.listener, state.is_evicted);
        let held = if is_evicted { evicted_held } else { held };
        let total = held.fetch_add(difference, Relaxed).wrapping_add(difference);
        drop(state);
        if total > MEMORY_MAX && !is_evicted {
            self.listener.free_memory();
        }
        changed
    }

    /// Polls `connection` unless it is evicted, and after the tasks of evicted connections have freed their memory. Of all
    /// connections with an overhead of more than [`READ_BUDGET`], one is polled at a time.
    pub(super) async fn poll_when_permitted<T>(&self, connection: impl Future<Output = T>) -> T {
        let mut connection = pin!(connection);
        let mut permits = PollSemaphore::new(self.listener.overhead_permit.clone());
        // A queued connection keeps its place, because an unused permit would block the others.
        let mut needs_permit = false;
        poll_fn(|context| {
            let state = self.state.lock();
            let is_evicted = state.is_evicted;
            needs_permit |= state.overhead > READ_BUDGET;
            drop(state);
            if is_evicted || self.listener.evicted_held.load(Relaxed) > MEMORY_FREED {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let _permit = if needs_permit { ready!(permits.poll_acquire(context)) } else { None };
            needs_permit = false;
            connection.as_mut().poll(context)
        })
        .await
    }

    pub(super) fn received(&self, bytes: usize) {
        if bytes > 0 {
            self.update(|state| {
                state.set_unparsed((state.unparsed + bytes).min(UNPARSED_MAX));
                state.overhead += bytes;
            });
        }
    }

    /// Records that a request has arrived.
    pub(super) fn begin_request<B>(self: &Arc<Self>, request: &Request<B>) -> Arc<InFlightRequest> {
        let field =
            |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + FIELD_COST;
        let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
        let cost = REQUEST_COST + path + request.headers().iter().map(field).sum::<usize>();
        self.update(|state| {
            state.set_unparsed(0);
            state.account_for(cost);
            state.held += cost;
            state.in_flight += 1;
            state.version = Some(request.version());
        });
        Arc::new(InFlightRequest { connection: self.clone(), cost, is_proven: AtomicBool::new(false) })
    }

    /// Returns the reason when the connection is evicted, or its client has taken too long. Each poll inspects the present
    /// state, so this must be polled after the connection and in the same task.
    pub(super) async fn expired(&self) -> &'static str {
        let mut timer = pin!(time::sleep(HEAD_TIMEOUT));
        poll_fn(|context| {
            self.watchdog.register(context.waker());
            loop {
                let state = self.state.lock();
                let (deadline, is_evicted) = (state.deadline(self.accepted), state.is_evicted);
                let overhead = state.overhead;
                drop(state);
                let now = Instant::now();
                if is_evicted {
                    return Poll::Ready("evicted");
                } else if overhead > OVERHEAD_MAX {
                    return Poll::Ready("too much overhead");
                } else if deadline.is_some_and(|deadline| deadline <= now) {
                    return Poll::Ready("timed out");
                }
                // An HTTP/2 stream can end without waking its connection, so there is always a next look.
                let alarm = deadline.unwrap_or(now + IDLE_TIMEOUT);
                // A later deadline does not move the timer: it fires early once instead of being reset by every request.
                if alarm < timer.deadline() {
                    timer.as_mut().reset(alarm);
                }
                ready!(timer.as_mut().poll(context));
                timer.as_mut().reset(alarm);
            }
        })
        .await
    }
}

/// A request in flight: until its body was read, and its client has read the response.
pub(in crate::http) struct InFlightRequest {
    connection: Arc<Activity>,
    cost: usize,
    is_proven: AtomicBool,
}

impl InFlightRequest {
    pub(in crate::http) fn peer(&self) -> IpAddr {
        self.connection.peer
    }

    /// Records that the request has a valid API key of this owner, with the scope that it needs, within its rate limit.
    pub(in crate::http) fn prove(&self, owner: &OwnerId) {
        let mut state = self.connection.state.lock();
        if !self.is_proven.swap(true, Relaxed) {
            state.proven_in_flight += 1;
        }
        state.owner = Some(owner.clone());
    }

    /// Records a part of the body, which is kept until [`Self::body_ended`].
    pub(super) fn body_received(&self, bytes: usize) {
        self.connection.update(|state| {
            state.set_unparsed(state.unparsed.saturating_sub(bytes));
            state.account_for(bytes * BYTES_PER_BYTE);
            state.held += bytes;
        });
    }

    /// Records that the body was read, and how many bytes of it are no longer kept.
    pub(super) fn body_ended(&self, bytes: usize) {
        self.connection.update(|state| {
            state.set_unparsed(0);
            state.held -= bytes;
        });
    }
}

/// A chunk of the response, which counts until it is dropped: hyper drops it when it has been written to the socket.
pub(super) fn count_chunk(bytes: Bytes, request: Arc<InFlightRequest>) -> Bytes {
    let held = if bytes.is_unique() { bytes.len() } else { 0 };
    let id = request.connection.update(|state| {
        let (id, read_before) = (state.next_chunk, state.read);
        state.unread.push(UnreadChunk { id, since: Instant::now(), read_before });
        state.next_chunk += 1;
        state.sent += bytes.len() as u64;
        state.held += held;
        id
    });
    Bytes::from_owner(CountedBytes { bytes, id, held, request })
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let is_proven = *self.is_proven.get_mut();
        self.connection.update(|state| {
            state.held -= self.cost;
            state.in_flight -= 1;
            state.proven_in_flight -= usize::from(is_proven);
            state.last_was_proven = is_proven;
            state.idle_since = Some(Instant::now());
        });
    }
}

/// A chunk of a response. It keeps its request in flight until it has been written to the socket.
struct CountedBytes {
    bytes: Bytes,
    id: u64,
    /// The memory that the chunk holds: none if it is a part of a file that all responses share.
    held: usize,
    request: Arc<InFlightRequest>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.request.connection.update(|state| {
            state.unread.retain(|chunk| chunk.id != self.id);
            state.read += self.bytes.len() as u64;
            state.account_for(self.bytes.len() * BYTES_PER_BYTE);
            state.held -= self.held;
        });
    }
}

#[cfg(test)]
mod tests;
