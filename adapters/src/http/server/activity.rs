//! The open connections of a listener: their requests in flight, the memory that they hold, and the deadlines of their
//! clients.
//!
//! hyper does not disconnect a client that sends nothing, its header timeout also ends idle connections, and it has no
//! write timeout. Therefore [`Activity`] records received bytes, requests and the chunks of responses, and
//! [`Activity::supervise`] ends the connection at its deadline. A byte that the client sends or reads extends no deadline.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    net::IpAddr,
    ops::RangeBounds,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
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
use tokio::{
    sync::{Semaphore, watch},
    time::{self, Instant},
};
use tokio_util::sync::PollSemaphore;

use super::{
    eviction::{ConnectionKey, Group, choose},
    tls::Tls,
};
use crate::http::{
    middleware::client_address::{is_trusted, network},
    settings::{HttpSettings, ListenerSettings, MEMORY_MAX, TrustedProxy},
};

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
/// The overhead that a client may have for each byte of a body that it sends, and of a response that it reads: frames and TLS
/// records of one byte each. A request accounts for as many bytes as the memory that it is counted with.
const OVERHEAD_PER_BYTE: usize = 64;

/// An eviction compares all connections, and so must be rare: it frees 1/8 of the memory, or 1/64 of the slots, of the
/// listener or of an address.
const MEMORY_FREED: usize = MEMORY_MAX / 8;
const SLOTS_FREED_PART: usize = 64;

/// Logs a request that the HTTP parser rejects, with the address of the peer.
type LogUnparsed = dyn Fn(IpAddr, &str) + Send + Sync;

/// A listener: its limits, and its open connections with the memory that they hold.
pub(in crate::http) struct Listener {
    /// Its name in the metrics.
    pub(in crate::http) name: &'static str,
    pub(in crate::http) limits: ListenerSettings,
    pub(in crate::http) tls: Option<Arc<Tls>>,
    trusted_proxies: Vec<TrustedProxy>,
    pub(super) log_unparsed: Box<LogUnparsed>,
    /// The memory of all connections, in bytes.
    pub(in crate::http) held: AtomicUsize,
    /// The memory of evicted connections, which is free when their tasks have ended.
    evicted_held: AtomicUsize,
    pub(in crate::http) evicted: AtomicU64,
    accepted: AtomicU64,
    /// One permit, for connections with much overhead.
    overhead_permit: Arc<Semaphore>,
    connections: Mutex<BTreeMap<ConnectionKey, Arc<Activity>>>,
    /// When the service began to stop.
    pub(super) draining: watch::Sender<Option<Instant>>,
}

impl Listener {
    pub(in crate::http) fn new(
        name: &'static str,
        limits: ListenerSettings,
        settings: &HttpSettings,
        tls: Option<Arc<Tls>>,
        log_unparsed: impl Fn(IpAddr, &str) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            limits,
            tls,
            trusted_proxies: settings.trusted_proxies.clone(),
            log_unparsed: Box::new(log_unparsed),
            held: AtomicUsize::default(),
            evicted_held: AtomicUsize::default(),
            evicted: AtomicU64::default(),
            accepted: AtomicU64::default(),
            overhead_permit: Arc::new(Semaphore::new(1)),
            connections: Mutex::default(),
            draining: watch::Sender::default(),
        })
    }

    pub(in crate::http) fn open(&self) -> usize {
        self.connections.lock().len()
    }

    /// Lets connections end. Unproven ones get little time.
    pub(super) fn drain(&self) {
        self.draining.send_replace(Some(Instant::now()));
        self.connections.lock().values().for_each(|connection| connection.watchdog.wake());
    }

    /// Begins a connection. Evicts others if all slots, or as many as its address may have, are taken.
    pub(super) fn connect(self: &Arc<Self>, peer: IpAddr) -> Arc<Activity> {
        let mut open = self.connections.lock();
        let kept = |limit| limit - limit / SLOTS_FREED_PART - 1;
        let (address, all) = (network(peer), self.limits.connections_max);
        let same_address = (address, 0)..=(address, u64::MAX);
        if let Some(limit) = self.limits.connections_per_address
            && !is_trusted(&self.trusted_proxies, peer)
            && open.range(same_address.clone()).count() >= limit
        {
            self.evict(&mut open, same_address, |_| 1, limit, kept(limit));
        }
        if open.len() >= all {
            self.evict(&mut open, .., |_| 1, all, kept(all));
        }
        let connection = Arc::new(Activity {
            key: (address, self.accepted.fetch_add(1, Relaxed)),
            peer,
            accepted: Instant::now(),
            state: Mutex::default(),
            listener: self.clone(),
            watchdog: AtomicWaker::new(),
        });
        open.insert(connection.key, connection.clone());
        connection
    }

    /// Closes connections until the others hold at most `kept` of `limit`. Their slots and memory are free at once.
    fn evict(
        &self,
        open: &mut BTreeMap<ConnectionKey, Arc<Activity>>,
        keys: impl RangeBounds<ConnectionKey>,
        amount: fn(&ConnectionState) -> usize,
        limit: usize,
        kept: usize,
    ) {
        let candidates = open.range(keys).map(|(key, connection)| {
            let state = connection.state.lock();
            (*key, state.group(key.0), amount(&state), state.eviction_order(connection.accepted))
        });
        for key in choose(candidates, limit, kept) {
            if let Some(connection) = open.remove(&key) {
                let mut state = connection.state.lock();
                state.is_evicted = true;
                self.held.fetch_sub(state.held, Relaxed);
                self.evicted_held.fetch_add(state.held, Relaxed);
                self.evicted.fetch_add(1, Relaxed);
                connection.watchdog.wake();
            }
        }
    }
}

/// The activity of one connection, shared by its stream, its requests and its watchdog.
pub(super) struct Activity {
    key: ConnectionKey,
    /// The address of the client, or of a proxy.
    pub(super) peer: IpAddr,
    accepted: Instant,
    pub(super) state: Mutex<ConnectionState>,
    pub(super) listener: Arc<Listener>,
    watchdog: AtomicWaker,
}

#[derive(Default)]
pub(super) struct ConnectionState {
    /// The owner of the last accepted key. A connection is proven while a request with an accepted key is in flight. If none
    /// is, the last request decides that has ended.
    owner: Option<OwnerId>,
    in_flight: usize,
    proven_in_flight: usize,
    /// When the last request in flight ended.
    idle_since: Option<Instant>,
    /// The version of the last request.
    version: Option<Version>,
    /// The memory of the connection, in bytes.
    held: usize,
    /// The part of it that was received, and belongs neither to a request nor to a body yet.
    unparsed: usize,
    /// When the first of these bytes arrived.
    first_byte: Option<Instant>,
    /// The bytes received beyond those that are accounted for.
    pub(super) overhead: usize,
    /// The bytes of all responses so far, and those that the client has read.
    sent: u64,
    read: u64,
    /// The chunks of responses that the client has not read, by their number: since when, and `read` at that time.
    unread: BTreeMap<u64, (Instant, u64)>,
    chunks: u64,
    is_evicted: bool,
}

impl ConnectionState {
    fn group(&self, network: IpNet) -> Group {
        self.owner.clone().map_or(Group::Address(network), Group::Owner)
    }

    /// The order in which connections of a group lose their slots. Unproven ones: as they were accepted. Proven ones: since
    /// when they wait for a request, or for a response to be read; those that wait for the service come last.
    fn eviction_order(&self, accepted: Instant) -> (bool, Instant) {
        let unread = self.unread.values().map(|(since, _)| *since).min();
        let waiting = if self.in_flight == 0 { self.idle_since } else { unread };
        let since = if self.owner.is_some() { waiting } else { Some(accepted) };
        (since.is_none(), since.unwrap_or(accepted))
    }

    fn set_unparsed(&mut self, bytes: usize) {
        self.held = self.held + bytes - self.unparsed;
        self.unparsed = bytes;
        self.first_byte = (bytes > 0).then(|| self.first_byte.unwrap_or_else(Instant::now));
    }

    /// When the client will have taken too long. There is no deadline while it waits for the service; that of a request
    /// body is set by its reader.
    fn deadline(&self, Activity { accepted, listener, .. }: &Activity) -> Option<Instant> {
        let idle_since = self.idle_since.unwrap_or(*accepted);
        // Only hyper can tell the head of an HTTP/2 request from other frames.
        let may_be_head = self.version.is_none_or(|version| version < Version::HTTP_2);
        let deadline = if self.in_flight > 0 {
            // Everything that was unread when the chunk began, or began since, has to be read.
            let seconds = |read_before| Duration::from_secs((self.sent - read_before) / READ_RATE_MIN);
            let deadlines =
                self.unread.values().map(|(since, read)| *since + RESPONSE_TIMEOUT + seconds(read));
            deadlines.min()
        } else if let Some(first_byte) = self.first_byte.filter(|_| may_be_head) {
            Some(first_byte.max(idle_since) + HEAD_TIMEOUT)
        } else if self.version.is_none() {
            Some(*accepted + HEAD_TIMEOUT)
        } else {
            Some(idle_since + IDLE_TIMEOUT)
        };
        let draining = listener.draining.borrow().filter(|_| self.owner.is_none());
        let drained = draining.map(|since| since + UNPROVEN_DRAIN_TIMEOUT);
        [deadline, drained].into_iter().flatten().min()
    }
}

impl Activity {
    /// Frees the slot of the connection. Requests in flight keep their memory until they end. Returns whether something
    /// is cut off that the client has not read.
    pub(super) fn end(&self) -> bool {
        self.listener.connections.lock().remove(&self.key);
        self.update(|state| {
            state.set_unparsed(0);
            state.is_evicted || !state.unread.is_empty()
        })
    }

    /// Changes the state. The memory of the listener follows; over the limit, connections are evicted.
    fn update<T>(&self, change: impl FnOnce(&mut ConnectionState) -> T) -> T {
        let listener = &self.listener;
        let mut state = self.state.lock();
        let before = state.held;
        let changed = change(&mut state);
        // The difference may be negative.
        let (difference, is_evicted) = (state.held.wrapping_sub(before), state.is_evicted);
        let held = if is_evicted { &listener.evicted_held } else { &listener.held };
        let total = held.fetch_add(difference, Relaxed).wrapping_add(difference);
        drop(state);
        if total > MEMORY_MAX && !is_evicted {
            let mut open = listener.connections.lock();
            // Another thread may have done it.
            if listener.held.load(Relaxed) > MEMORY_MAX {
                listener.evict(&mut open, .., |state| state.held, MEMORY_MAX, MEMORY_MAX - MEMORY_FREED);
            }
        }
        changed
    }

    /// Polls `connection` until it ends. Returns the reason when it is evicted, or when its client has taken too long.
    ///
    /// It is polled after the tasks of evicted connections have freed their memory. Of all connections with an overhead of more
    /// than [`READ_BUDGET`], one is polled at a time.
    pub(super) async fn supervise<T>(&self, connection: impl Future<Output = T>) -> Result<T, &'static str> {
        let (mut connection, mut timer) = (pin!(connection), pin!(time::sleep(HEAD_TIMEOUT)));
        let mut permits = PollSemaphore::new(self.listener.overhead_permit.clone());
        // A queued connection keeps its place, because an unused permit would block the others.
        let mut needs_permit = false;
        poll_fn(|context| {
            self.watchdog.register(context.waker());
            let state = self.state.lock();
            if state.is_evicted {
                return Poll::Ready(Err("evicted"));
            }
            needs_permit |= state.overhead > READ_BUDGET;
            drop(state);
            if self.listener.evicted_held.load(Relaxed) > MEMORY_FREED {
                context.waker().wake_by_ref();
            } else if let Poll::Ready(_permit) =
                if needs_permit { permits.poll_acquire(context) } else { Poll::Ready(None) }
            {
                needs_permit = false;
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(Ok(ended));
                }
            }
            let state = self.state.lock();
            let (deadline, overhead, now) = (state.deadline(self), state.overhead, Instant::now());
            drop(state);
            if overhead > OVERHEAD_MAX {
                return Poll::Ready(Err("too much overhead"));
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(Err("timed out"));
            }
            // An HTTP/2 stream can end without waking its connection, so there is always a next look.
            let alarm = deadline.unwrap_or(now + IDLE_TIMEOUT);
            // A later deadline does not move the timer: it fires early once instead of being reset by every request.
            if alarm < timer.deadline() {
                timer.as_mut().reset(alarm);
            }
            if timer.as_mut().poll(context).is_ready() {
                timer.as_mut().reset(alarm);
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn received(&self, bytes: usize) {
        self.update(|state| {
            state.set_unparsed((state.unparsed + bytes).min(UNPARSED_MAX));
            state.overhead += bytes;
        });
    }

    /// Records that a request has arrived.
    pub(super) fn begin_request<B>(self: &Arc<Self>, request: &Request<B>) -> Arc<InFlightRequest> {
        let field =
            |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + FIELD_COST;
        let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
        let cost = REQUEST_COST + path + request.headers().iter().map(field).sum::<usize>();
        self.update(|state| {
            state.set_unparsed(0);
            state.overhead = state.overhead.saturating_sub(cost);
            state.held += cost;
            state.in_flight += 1;
            state.version = Some(request.version());
        });
        Arc::new(InFlightRequest { connection: self.clone(), cost, is_proven: AtomicBool::new(false) })
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
        state.proven_in_flight += usize::from(!self.is_proven.swap(true, Relaxed));
        state.owner = Some(owner.clone());
    }

    /// Records a part of the body, which is kept until [`Self::body_ended`].
    pub(super) fn body_received(&self, bytes: usize) {
        self.connection.update(|state| {
            state.set_unparsed(state.unparsed.saturating_sub(bytes));
            state.overhead = state.overhead.saturating_sub(bytes * OVERHEAD_PER_BYTE);
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
        state.chunks += 1;
        state.unread.insert(state.chunks, (Instant::now(), state.read));
        state.sent += bytes.len() as u64;
        state.held += held;
        state.chunks
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
            if !is_proven && state.proven_in_flight == 0 {
                state.owner = None;
            }
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
            state.unread.remove(&self.id);
            state.read += self.bytes.len() as u64;
            state.overhead = state.overhead.saturating_sub(self.bytes.len() * OVERHEAD_PER_BYTE);
            state.held -= self.held;
        });
    }
}

#[cfg(test)]
mod tests;
