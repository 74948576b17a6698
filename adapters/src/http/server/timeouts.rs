//! What a connection is doing, and how long that may last.
//!
//! hyper does not disconnect a client that sends nothing, its header timeout also ends idle connections, and it has no
//! write timeout: an HTTP/2 client that opens its windows by one byte keeps whole responses in memory. Therefore
//! [`Activity`] records received bytes, requests and sent chunks, and a [`Watchdog`] ends a connection whose state has
//! lasted too long.
//!
//! | state | begins | timeout |
//! |---|---|---|
//! | head | with the connection, and with the first byte after idling; more bytes do not extend it | `head_timeout` |
//! | request in flight | when its head is complete; ends when the client has its response and its body was read | `request_timeout` |
//! | response unread | with the response, and again with each part of it that the client reads | `write_timeout` |
//! | chunk of a streaming response unread | with the chunk, and again with each whole chunk that the client reads | `write_timeout` |
//! | idle | when no request is in flight | `idle_timeout` |
//! | stalled | when the socket accepts no bytes, in addition to any other state | `write_timeout` |
//!
//! A streaming response lasts as long as the client reads its chunks, and may pause between them.
//!
//! An HTTP/2 connection is idle when no stream is open: only hyper can parse the frames of its heads.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{self, Instant, Sleep};

use super::settings::Settings;

/// Unsent bytes of one connection above which its requests get 503: a large page on each of its streams.
const UNSENT_PER_CONNECTION_MAX: usize = 4 * 1024 * 1024;

/// Unsent bytes of all connections above which every request gets 503.
pub(in crate::http) const UNSENT_MAX: usize = 64 * 1024 * 1024;

/// Unsent bytes of all connections above which the write timeout is [`PRESSURE_TIMEOUT`].
const PRESSURE: usize = UNSENT_MAX / 2;
const PRESSURE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a connection with requests in flight is checked. Memory pressure, and HTTP/2 streams that end in tasks of
/// their own, bring its deadline forward without waking its task.
const CHECK_INTERVAL: Duration = PRESSURE_TIMEOUT;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The number of response bytes that clients have not read yet.
pub(in crate::http) type UnsentBytes = AtomicUsize;

/// The state of one connection, shared by its stream, its requests and its watchdog.
pub(super) struct Activity {
    state: Mutex<State>,
    watchdog: AtomicWaker,
    unsent: UnsentBytes,
    /// The sum over all connections of the service.
    total_unsent: Arc<UnsentBytes>,
}

struct State {
    protocol: Protocol,
    /// What a connection without requests in flight waits for, and since when.
    waiting: (Waiting, Instant),
    in_flight: Vec<Request>,
    next_id: u64,
    stalled: Option<Instant>,
    is_evicted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Only this many bytes of the HTTP/2 preface have arrived.
    Unknown(usize),
    Http1,
    Http2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// The rest of a head.
    Head,
    /// The first byte of the next request.
    NextRequest,
}

struct Request {
    id: u64,
    since: Instant,
    response: Response,
}

enum Response {
    Pending,
    /// The time at which the client could read the response, or last read a part of it.
    Sending(Instant),
    /// The number of unread chunks, and the time at which the client could read the first or last read one.
    Streaming(usize, Instant),
}

impl Activity {
    /// Records a new connection, which waits for a head.
    pub(super) fn new(total_unsent: Arc<UnsentBytes>) -> Arc<Self> {
        let state = State {
            protocol: Protocol::Unknown(0),
            waiting: (Waiting::Head, Instant::now()),
            in_flight: Vec::new(),
            next_id: 0,
            stalled: None,
            is_evicted: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            watchdog: AtomicWaker::new(),
            unsent: UnsentBytes::new(0),
            total_unsent,
        })
    }

    /// Begins a request. It is in flight until the last clone of the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlightRequest {
        let mut state = self.state.lock();
        let (id, since) = (state.next_id, Instant::now());
        state.next_id += 1;
        state.in_flight.push(Request { id, since, response: Response::Pending });
        InFlightRequest(Arc::new(Guard { activity: self.clone(), id, since }))
    }

    /// Ends the connection if no request is in flight.
    pub(super) fn evict_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.is_evicted = state.in_flight.is_empty();
        if state.is_evicted {
            self.watchdog.wake();
        }
        state.is_evicted
    }

    /// Records bytes from the client.
    pub(super) fn received(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.detect_protocol(bytes);
        match (state.protocol, state.waiting) {
            (Protocol::Http2, (Waiting::Head, _)) => state.waiting = (Waiting::NextRequest, Instant::now()),
            (Protocol::Http1 | Protocol::Unknown(_), (Waiting::NextRequest, _))
                if state.in_flight.is_empty() =>
            {
                state.waiting = (Waiting::Head, Instant::now());
            }
            (Protocol::Http1 | Protocol::Http2 | Protocol::Unknown(_), _) => {}
        }
    }

    /// Records whether the socket accepted bytes.
    pub(super) fn wrote<T>(&self, outcome: &Poll<T>) {
        let mut state = self.state.lock();
        match outcome {
            Poll::Pending => _ = state.stalled.get_or_insert_with(Instant::now),
            Poll::Ready(_) => state.stalled = None,
        }
    }

    fn is_idle(&self) -> bool {
        self.state.lock().in_flight.is_empty()
    }

    /// When the present state will have lasted too long.
    fn deadline(&self, now: Instant, settings: &Settings) -> Instant {
        let has_pressure = self.total_unsent.load(Relaxed) >= PRESSURE;
        let write_timeout = if has_pressure { PRESSURE_TIMEOUT } else { settings.write_timeout };
        let state = self.state.lock();
        let requests = state.in_flight.iter();
        let requests = requests.map(|request| match request.response {
            Response::Pending => request.since + settings.request_timeout(),
            Response::Sending(since) => {
                (request.since + settings.request_timeout()).min(since + write_timeout)
            }
            Response::Streaming(0, _) => now + settings.idle_timeout,
            Response::Streaming(_, since) => since + write_timeout,
        });
        let deadline = requests.min().unwrap_or_else(|| state.idle_deadline(settings));
        state.stalled.map_or(deadline, |since| deadline.min(since + settings.write_timeout))
    }
}

impl State {
    fn idle_deadline(&self, settings: &Settings) -> Instant {
        match self.waiting {
            (_, since) if self.is_evicted => since,
            (Waiting::Head, since) => since + settings.head_timeout,
            (Waiting::NextRequest, since) => since + settings.idle_timeout,
        }
    }

    fn detect_protocol(&mut self, bytes: &[u8]) {
        let Protocol::Unknown(seen) = self.protocol else { return };
        let expected = &HTTP2_PREFACE[seen..];
        let compared = expected.len().min(bytes.len());
        self.protocol = if expected[..compared] != bytes[..compared] {
            Protocol::Http1
        } else if compared == expected.len() {
            Protocol::Http2
        } else {
            Protocol::Unknown(seen + compared)
        };
    }
}

/// Keeps a request in flight.
#[derive(Clone)]
pub(super) struct InFlightRequest(Arc<Guard>);

struct Guard {
    activity: Arc<Activity>,
    id: u64,
    since: Instant,
}

impl InFlightRequest {
    /// The time at which the request began.
    pub(super) fn since(&self) -> std::time::Instant {
        self.0.since.into_std()
    }

    /// Whether the limits on unsent bytes allow another response.
    pub(super) fn may_send_more(&self) -> bool {
        let Activity { unsent, total_unsent, .. } = &*self.0.activity;
        unsent.load(Relaxed) < UNSENT_PER_CONNECTION_MAX && total_unsent.load(Relaxed) < UNSENT_MAX
    }

    /// Records that the client can read a response of bounded length.
    pub(super) fn response_began(&self) {
        self.update(|response| *response = Response::Sending(Instant::now()));
    }

    /// Records that the client can read a streaming response, which has no chunk yet.
    pub(super) fn stream_began(&self) {
        self.update(|response| *response = Response::Streaming(0, Instant::now()));
    }

    /// Records a chunk that holds this much memory until the client has read it.
    pub(super) fn chunk_began(&self, held: usize) {
        self.0.activity.unsent.fetch_add(held, Relaxed);
        self.0.activity.total_unsent.fetch_add(held, Relaxed);
        self.update(|response| match response {
            Response::Pending | Response::Sending(_) => {}
            Response::Streaming(0, _) => *response = Response::Streaming(1, Instant::now()),
            Response::Streaming(chunks, _) => *chunks += 1,
        });
    }

    /// Records that the client has read a part of a chunk, which counts only for responses of bounded length.
    pub(super) fn chunk_advanced(&self) {
        self.update(|response| match response {
            Response::Sending(since) => *since = Instant::now(),
            Response::Pending | Response::Streaming(..) => {}
        });
    }

    /// Records that the client has read a chunk, or that the chunk was dropped.
    pub(super) fn chunk_ended(&self, held: usize) {
        self.0.activity.unsent.fetch_sub(held, Relaxed);
        self.0.activity.total_unsent.fetch_sub(held, Relaxed);
        self.update(|response| match response {
            Response::Pending | Response::Sending(_) => {}
            Response::Streaming(chunks, since) => (*chunks, *since) = (*chunks - 1, Instant::now()),
        });
    }

    fn update(&self, change: impl FnOnce(&mut Response)) {
        let mut state = self.0.activity.state.lock();
        if let Some(request) = state.in_flight.iter_mut().find(|request| request.id == self.0.id) {
            change(&mut request.response);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        state.in_flight.retain(|request| request.id != self.id);
        if state.in_flight.is_empty() {
            state.waiting = (Waiting::NextRequest, Instant::now());
        }
    }
}

/// Ends a connection whose state has lasted too long. Its timer is not reset with every request: it may fire early, and
/// is then set to the new deadline.
pub(super) struct Watchdog<'a> {
    activity: &'a Activity,
    settings: &'a Settings,
    timer: Pin<Box<Sleep>>,
}

impl<'a> Watchdog<'a> {
    pub(super) fn new(activity: &'a Activity, settings: &'a Settings) -> Self {
        Self { activity, settings, timer: Box::pin(time::sleep(settings.head_timeout)) }
    }

    /// Returns when the connection is overdue or evicted. Each poll inspects its present state, so this must be polled
    /// after the connection and in the same task.
    pub(super) async fn expired(&mut self) {
        poll_fn(|context| self.poll_expired(context)).await;
    }

    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.activity.watchdog.register(context.waker());
        loop {
            let now = Instant::now();
            let deadline = self.activity.deadline(now, self.settings);
            let alarm = if self.activity.is_idle() { deadline } else { deadline.min(now + CHECK_INTERVAL) };
            if alarm < self.timer.deadline() {
                self.timer.as_mut().reset(alarm);
            }
            ready!(self.timer.as_mut().poll(context));
            if deadline <= now {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(alarm);
        }
    }
}

#[cfg(test)]
mod tests;
