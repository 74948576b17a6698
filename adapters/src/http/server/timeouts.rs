//! What a connection is doing, how long that may last, and how much memory it holds.
//!
//! hyper does not disconnect a client that sends nothing, its header timeout also ends idle connections, and it has no
//! write timeout: an HTTP/2 client that opens its windows by one byte keeps whole responses in memory. Therefore
//! [`Activity`] records received bytes, requests and sent chunks, and [`Activity::expired`] ends a connection whose
//! state has lasted too long.
//!
//! | state | begins | timeout |
//! |---|---|---|
//! | head | with the connection, and with the first byte after idling; more bytes do not extend it | `head_timeout` |
//! | request in flight | when its head is complete; ends when the client has its response and its body was read | [`BODY_TIMEOUT`] + `idle_timeout` + `write_timeout` |
//! | response unread | with the response, and again with each part of it that the client reads | `write_timeout` |
//! | chunk of an endless response unread | with the chunk, and again with each whole chunk that the client reads | `write_timeout` |
//! | idle | when no request is in flight | `idle_timeout` |
//! | stalled | when the socket accepts no bytes, in addition to any other state | `write_timeout` |
//!
//! An endless response lasts as long as the client reads its chunks. The time between two chunks is not limited.
//!
//! When the service stops, a connection without an authenticated request has [`DRAIN_TIMEOUT`] left. A connection with
//! too many unread responses to unauthenticated requests is closed, unless a trusted proxy shares it among clients.
//!
//! The watchdog inspects the state after each poll of the connection and reads the clock once: a state begins when the
//! watchdog first sees it.
//!
//! An HTTP/2 connection is idle when no stream is open: only hyper can parse the frames of its heads.

use std::{
    future::poll_fn,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Poll, ready},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{self, Instant};

use super::Settings;
use crate::http::api::json_body::BODY_TIMEOUT;

/// Memory of one connection above which its requests get 503: a large page on each of its streams.
const HELD_PER_CONNECTION_MAX: usize = 4 * 1024 * 1024;

/// Memory of all connections above which every request gets 503.
pub(in crate::http) const HELD_MAX: usize = 64 * 1024 * 1024;

/// Memory of all connections above which a client has [`PRESSURE_TIMEOUT`] to send a body or to read a response, and
/// one unread response to an unauthenticated request.
const PRESSURE: usize = HELD_MAX / 2;
const PRESSURE_TIMEOUT: Duration = Duration::from_secs(1);

/// The memory of a request itself: head, task and HTTP/2 stream.
const REQUEST_COST: usize = 2 * 1024;

/// Maximum number of unread responses to unauthenticated requests per connection. A browser that loads a page needs
/// about eight.
const UNAUTHENTICATED_MAX: usize = 12;

/// How long an unauthenticated request protects its connection from eviction at the connection limit.
const EVICTION_AGE: Duration = Duration::from_secs(1);

/// How long a connection without an authenticated request may last when the service stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a connection with requests in flight is checked. Memory pressure, and HTTP/2 streams that end in other
/// tasks, bring its deadline forward without waking its task.
const CHECK_INTERVAL: Duration = PRESSURE_TIMEOUT;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The state of one connection, shared by its stream, its requests and its watchdog.
pub(super) struct Activity {
    /// The address of the client, or of a proxy.
    pub(super) peer: IpAddr,
    state: Mutex<State>,
    watchdog: AtomicWaker,
    /// The memory of its requests in flight, in bytes: the requests themselves, the bodies received so far, and the
    /// responses that the client has not read yet.
    held: AtomicUsize,
    /// The sum over all connections of the service.
    total_held: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    /// The bytes of the HTTP/2 preface that have not arrived: none for HTTP/2, `None` for HTTP/1.
    preface: Option<&'static [u8]>,
    /// Whether a connection without requests in flight waits for a head, or else is idle.
    awaits_head: bool,
    /// Since when it waits or is idle.
    waiting_since: Option<Instant>,
    in_flight: Vec<Request>,
    next_id: u64,
    stalled: Option<Instant>,
    is_evicted: bool,
    draining: Option<Instant>,
}

#[derive(Default)]
struct Request {
    id: u64,
    begun: Option<Instant>,
    is_authenticated: bool,
    /// Whether a part of the body has arrived, and not its end.
    is_receiving: bool,
    extent: Extent,
    /// The parts of the response that the client has not read: its chunks, and one for a bounded response as a whole.
    unread: usize,
    /// When the client could first read the response, or last read a part of it.
    progress: Option<Instant>,
}

/// How long a response is: a response extension.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::http) enum Extent {
    /// It has an end, so reading a part of a chunk counts as progress.
    #[default]
    Bounded,
    /// It lasts as long as the client reads whole chunks in time.
    Endless,
}

impl Activity {
    pub(super) fn new(peer: IpAddr, total_held: Arc<AtomicUsize>) -> Arc<Self> {
        let state = Mutex::new(State { preface: Some(HTTP2_PREFACE), awaits_head: true, ..State::default() });
        Arc::new(Self { peer, state, watchdog: AtomicWaker::new(), held: AtomicUsize::new(0), total_held })
    }

    pub(super) fn begin(self: &Arc<Self>) -> Arc<InFlightRequest> {
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.in_flight.push(Request { id, ..Request::default() });
        drop(state);
        self.hold(REQUEST_COST);
        Arc::new(InFlightRequest { activity: self.clone(), id })
    }

    pub(super) fn drain(&self) {
        self.state.lock().draining = Some(Instant::now());
    }

    fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
        self.total_held.fetch_add(bytes, Relaxed);
    }

    fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.total_held.fetch_sub(bytes, Relaxed);
    }

    fn has_pressure(&self) -> bool {
        self.total_held.load(Relaxed) >= PRESSURE
    }

    /// Ends the connection if no request is in flight, or only unauthenticated ones that have lasted for more than
    /// [`EVICTION_AGE`].
    pub(super) fn evict_if_unused(&self) -> bool {
        let mut state = self.state.lock();
        let is_used = state.in_flight.iter().any(|request| {
            request.is_authenticated || request.begun.is_none_or(|begun| begun.elapsed() <= EVICTION_AGE)
        });
        state.is_evicted |= !is_used;
        if state.is_evicted {
            self.watchdog.wake();
        }
        state.is_evicted
    }

    /// Ends the connection if it has too many unread responses to unauthenticated requests.
    pub(super) fn evict_if_flooded(&self) {
        let max = if self.has_pressure() { 1 } else { UNAUTHENTICATED_MAX };
        let mut state = self.state.lock();
        let is_unauthenticated = |request: &&Request| !request.is_authenticated && request.unread > 0;
        if state.in_flight.iter().filter(is_unauthenticated).count() > max {
            state.is_evicted = true;
            self.watchdog.wake();
        }
    }

    pub(super) fn received(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(missing) = state.preface {
            let arrived = missing.len().min(bytes.len());
            state.preface = (missing[..arrived] == bytes[..arrived]).then(|| &missing[arrived..]);
        }
        let is_http2 = state.preface.is_some_and(<[u8]>::is_empty);
        if state.in_flight.is_empty() && state.awaits_head == is_http2 {
            (state.awaits_head, state.waiting_since) = (!is_http2, None);
        }
    }

    /// Records whether the socket accepted bytes.
    pub(super) fn wrote<T>(&self, outcome: &Poll<T>) {
        let stalled = &mut self.state.lock().stalled;
        *stalled = outcome.is_pending().then(|| stalled.unwrap_or_else(Instant::now));
    }

    /// Returns when the connection is evicted, or its state has lasted too long. Each poll inspects the present state, so
    /// this must be polled after the connection and in the same task.
    pub(super) async fn expired(&self, settings: &Settings) {
        let mut timer = pin!(time::sleep(settings.head_timeout));
        poll_fn(|context| {
            self.watchdog.register(context.waker());
            loop {
                let now = Instant::now();
                let (deadline, is_idle) = self.deadline(now, settings);
                let alarm = if is_idle { deadline } else { deadline.min(now + CHECK_INTERVAL) };
                // A later deadline does not move the timer: it fires early once instead of being reset by every request.
                if alarm < timer.deadline() {
                    timer.as_mut().reset(alarm);
                }
                ready!(timer.as_mut().poll(context));
                if deadline <= now {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(alarm);
            }
        })
        .await;
    }

    /// When the present state will have lasted too long, and whether no request is in flight.
    fn deadline(&self, now: Instant, settings: &Settings) -> (Instant, bool) {
        let has_pressure = self.has_pressure();
        let write_timeout = if has_pressure { PRESSURE_TIMEOUT } else { settings.write_timeout };
        let request_timeout = BODY_TIMEOUT + settings.idle_timeout + settings.write_timeout;
        let mut state = self.state.lock();
        let is_idle = state.in_flight.is_empty();
        if state.is_evicted {
            return (now, is_idle);
        }
        let requests = state.in_flight.iter_mut().map(|request| {
            let begun = *request.begun.get_or_insert(now);
            let end = match request.extent {
                Extent::Bounded if request.is_receiving && has_pressure => begun + PRESSURE_TIMEOUT,
                Extent::Bounded => begun + request_timeout,
                Extent::Endless => now + settings.idle_timeout,
            };
            let progress = *request.progress.get_or_insert(now);
            if request.unread > 0 { end.min(progress + write_timeout) } else { end }
        });
        let deadline = requests.min().unwrap_or_else(|| {
            let timeout = if state.awaits_head { settings.head_timeout } else { settings.idle_timeout };
            *state.waiting_since.get_or_insert(now) + timeout
        });
        let stalled = state.stalled.map(|since| since + settings.write_timeout);
        let is_authenticated = state.in_flight.iter().any(|request| request.is_authenticated);
        let drained = state.draining.filter(|_| !is_authenticated).map(|since| since + DRAIN_TIMEOUT);
        ([stalled, drained].into_iter().flatten().fold(deadline, Instant::min), is_idle)
    }
}

/// Keeps a request in flight until it is dropped.
pub(in crate::http) struct InFlightRequest {
    activity: Arc<Activity>,
    id: u64,
}

impl InFlightRequest {
    /// The address of the client, or of a proxy.
    pub(in crate::http) fn peer(&self) -> IpAddr {
        self.activity.peer
    }

    /// Whether there is memory for another response. An HTTP/2 stream runs in a separate task, so it sees the memory of
    /// the streams before it.
    pub(in crate::http) fn has_memory(&self) -> bool {
        let Activity { held, total_held, .. } = &*self.activity;
        held.load(Relaxed) < HELD_PER_CONNECTION_MAX && total_held.load(Relaxed) < HELD_MAX
    }

    pub(in crate::http) fn mark_authenticated(&self) {
        self.update(|request| request.is_authenticated = true);
    }

    /// Records a part of the body. Returns whether there is memory for it.
    pub(super) fn body_received(&self, bytes: usize) -> bool {
        self.activity.hold(bytes);
        self.update(|request| request.is_receiving = true);
        self.has_memory()
    }

    /// Records that the body is complete, or is not wanted any more.
    pub(super) fn body_ended(&self, bytes: usize) {
        self.activity.release(bytes);
        self.update(|request| request.is_receiving = false);
    }

    /// Records that the client can read the response. Returns whether the request has a valid API key.
    pub(super) fn response_began(&self, extent: Extent) -> bool {
        self.update(|request| {
            request.extent = extent;
            request.unread = usize::from(extent == Extent::Bounded);
            request.progress = None;
            request.is_authenticated
        })
    }

    /// Records a chunk that holds this much memory until the client has read it.
    pub(super) fn chunk_began(&self, held: usize) {
        self.activity.hold(held);
        self.update(|request| {
            if request.unread == 0 {
                request.progress = None;
            }
            request.unread += 1;
        });
    }

    pub(super) fn chunk_advanced(&self) {
        self.update(|request| {
            if request.extent == Extent::Bounded {
                request.progress = None;
            }
        });
    }

    /// Records that the client has read a chunk, or that the chunk was dropped.
    pub(super) fn chunk_ended(&self, held: usize) {
        self.activity.release(held);
        self.update(|request| {
            request.unread -= 1;
            request.progress = None;
        });
    }

    fn update<T>(&self, change: impl FnOnce(&mut Request) -> T) -> T {
        let mut state = self.activity.state.lock();
        let request = state.in_flight.iter_mut().find(|request| request.id == self.id);
        change(request.expect("a request is in flight as long as its guard"))
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.activity.release(REQUEST_COST);
        let mut state = self.activity.state.lock();
        state.in_flight.retain(|request| request.id != self.id);
        if state.in_flight.is_empty() {
            (state.awaits_head, state.waiting_since) = (false, None);
        }
    }
}

#[cfg(test)]
mod tests;
