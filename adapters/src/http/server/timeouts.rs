//! What a connection is doing, and how long that may last.
//!
//! hyper does not disconnect a peer that sends nothing, its header timeout also ends idle connections, and it
//! has no timeout for writing: an HTTP/2 peer that opens its windows by one byte reads nothing, and the whole
//! response stays in memory. So the connection is watched from three sides: the stream reports bytes
//! ([`Watched`]), the service reports requests ([`InFlight`]), and each piece of a response reports how much
//! of it was sent ([`Chunk`]).
//!
//! | state | begins | may last |
//! |---|---|---|
//! | head | with the connection, and with the first byte after idling; more bytes do not prolong it | `head_timeout` |
//! | request in flight | when its head is complete, until the peer took its response and its body was read | `request_timeout` |
//! | response not taken | with the response, and again with each part of it that the peer takes | `write_timeout` |
//! | piece of an endless response not taken | with the piece, and again with each whole piece that the peer takes | `write_timeout` |
//! | idle | when nothing is in flight any more | `idle_timeout` |
//! | stalled | when the socket takes no bytes, whatever else goes on | `write_timeout` |
//!
//! An endless response may last as long as its pieces are taken, and may have none for a while.
//!
//! An HTTP/2 connection is idle when no stream is open: its heads come in frames that only hyper understands.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use axum::body::Bytes;
use hyper::body::Buf;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::http::limits::{PRESSURE, PRESSURE_TIMEOUT, Settings, UNSENT_MAX, UNSENT_PER_CONNECTION_MAX};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many bytes of responses the peers have not taken yet.
pub(in crate::http) type Unsent = AtomicUsize;

/// The state of one connection, shared by its stream, its requests and its watchdog.
pub(super) struct Activity {
    state: Mutex<State>,
    /// Whether the state says so. Also outside the lock, which a write that goes well need not take.
    is_stalled: AtomicBool,
    unsent: Unsent,
    /// The same for all connections of the service.
    unsent_in_all: Arc<Unsent>,
}

struct State {
    waiting: Waiting,
    protocol: Protocol,
    /// Oldest first.
    in_flight: Vec<Flight>,
    /// Requests begun so far; their numbers tell them apart.
    begun: u64,
    stalled: Option<Instant>,
}

/// One request.
struct Flight {
    number: u64,
    since: Instant,
    /// When the peer could take the response, or took a part of it, for the last time.
    sending: Option<Instant>,
    length: Length,
}

/// How long a response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Bounded,
    /// Comes in pieces; so many of them are not taken yet.
    Endless {
        pieces: usize,
    },
}

/// Marks a response that lasts as long as its peer takes what it is sent.
#[derive(Debug, Clone, Copy)]
pub(in crate::http) struct Endless;

/// What is waited for while nothing is in flight.
enum Waiting {
    ForHead(Instant),
    ForAnything(Instant),
}

enum Protocol {
    /// So many bytes of the HTTP/2 preface were seen, and nothing else.
    Unknown(usize),
    Http1,
    Http2,
}

/// When to close a connection, and when to look at it again: memory pressure may bring the end forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) close: Instant,
    pub(super) look: Instant,
}

impl Activity {
    /// A new connection owes a head.
    pub(super) fn new(unsent_in_all: Arc<Unsent>) -> Arc<Self> {
        let state = State {
            waiting: Waiting::ForHead(Instant::now()),
            protocol: Protocol::Unknown(0),
            in_flight: Vec::with_capacity(1),
            begun: 0,
            stalled: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            is_stalled: AtomicBool::new(false),
            unsent: Unsent::new(0),
            unsent_in_all,
        })
    }

    /// A request begins. It is in flight until the last clone of the guard is gone.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut state = self.state.lock();
        state.begun += 1;
        let number = state.begun;
        let since = Instant::now();
        state.in_flight.push(Flight { number, since, sending: None, length: Length::Bounded });
        InFlight(Arc::new(Guard { activity: self.clone(), number, since, endless: AtomicBool::new(false) }))
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().in_flight.is_empty()
    }

    /// When the present state will have lasted too long.
    pub(super) fn deadline(&self, settings: &Settings) -> Deadline {
        let patience = if self.unsent_in_all.load(Relaxed) < PRESSURE {
            settings.write_timeout
        } else {
            PRESSURE_TIMEOUT
        };
        let state = self.state.lock();
        let bounded = state.in_flight.iter().find(|flight| flight.length == Length::Bounded);
        let mut close = match (bounded, &state.waiting) {
            (Some(oldest), _) => oldest.since + settings.request_timeout(),
            // Never reached: by then it has moved on.
            (None, _) if !state.in_flight.is_empty() => Instant::now() + settings.idle_timeout,
            (None, Waiting::ForHead(since)) => *since + settings.head_timeout,
            (None, Waiting::ForAnything(since)) => *since + settings.idle_timeout,
        };
        let mut look = close;
        if let Some(since) = state.in_flight.iter().filter_map(|flight| flight.sending).min() {
            close = close.min(since + patience);
            look = close.min(since + PRESSURE_TIMEOUT);
        }
        if let Some(since) = state.stalled {
            close = close.min(since + settings.write_timeout);
        }
        Deadline { close, look: look.min(close) }
    }

    fn received(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.recognise(bytes);
        match (&state.protocol, &state.waiting) {
            (Protocol::Http1 | Protocol::Unknown(_), Waiting::ForAnything(_))
                if state.in_flight.is_empty() =>
            {
                state.waiting = Waiting::ForHead(Instant::now());
            }
            (Protocol::Http2, Waiting::ForHead(_)) => state.waiting = Waiting::ForAnything(Instant::now()),
            (Protocol::Http1 | Protocol::Unknown(_) | Protocol::Http2, _) => {}
        }
    }

    fn wrote(&self, outcome: &Poll<io::Result<usize>>) {
        if outcome.is_ready() && !self.is_stalled.load(Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        match outcome {
            Poll::Pending => {
                state.stalled.get_or_insert_with(Instant::now);
            }
            Poll::Ready(_) => state.stalled = None,
        }
        self.is_stalled.store(state.stalled.is_some(), Relaxed);
    }
}

impl State {
    fn recognise(&mut self, bytes: &[u8]) {
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
pub(in crate::http) struct InFlight(Arc<Guard>);

struct Guard {
    activity: Arc<Activity>,
    number: u64,
    since: Instant,
    /// Also outside the lock, which other responses need not take for each of their pieces.
    endless: AtomicBool,
}

impl InFlight {
    /// Whether another response may be made. Otherwise the memory for it is not there.
    pub(super) fn has_room(&self) -> bool {
        let Activity { unsent, unsent_in_all, .. } = &*self.0.activity;
        unsent.load(Relaxed) < UNSENT_PER_CONNECTION_MAX && unsent_in_all.load(Relaxed) < UNSENT_MAX
    }

    /// When the request began.
    pub(super) fn since(&self) -> std::time::Instant {
        self.0.since.into_std()
    }

    /// The response is there: from now on the peer may take it.
    pub(super) fn sending(&self) {
        self.change(|flight| flight.sending = Some(Instant::now()));
    }

    /// The response is endless: from now on the peer has to take its pieces.
    pub(super) fn streaming(&self) {
        self.0.endless.store(true, Relaxed);
        self.change(|flight| flight.length = Length::Endless { pieces: 0 });
    }

    /// There is one more piece for the peer to take.
    fn piece_begins(&self) {
        self.change_pieces(|pieces| pieces + 1, |sending| sending.or_else(|| Some(Instant::now())));
    }

    /// The peer has taken a whole piece, or will get no more of it.
    fn piece_ends(&self) {
        self.change_pieces(|pieces| pieces - 1, |_| Some(Instant::now()));
    }

    fn change_pieces(
        &self,
        count: impl FnOnce(usize) -> usize,
        since: impl FnOnce(Option<Instant>) -> Option<Instant>,
    ) {
        if self.0.endless.load(Relaxed) {
            self.change(|flight| match flight.length {
                Length::Bounded => {}
                Length::Endless { pieces } => {
                    let pieces = count(pieces);
                    flight.length = Length::Endless { pieces };
                    flight.sending = if pieces > 0 { since(flight.sending) } else { None };
                }
            });
        }
    }

    fn change(&self, change: impl FnOnce(&mut Flight)) {
        let mut state = self.0.activity.state.lock();
        if let Some(flight) = state.in_flight.iter_mut().find(|flight| flight.number == self.0.number) {
            change(flight);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        let index = state.in_flight.iter().position(|flight| flight.number == self.number);
        let flight = state.in_flight.remove(index.expect("a request ends once"));
        if state.in_flight.is_empty() {
            // The clock is not read again: the response was sent a moment ago.
            state.waiting = Waiting::ForAnything(flight.sending.unwrap_or_else(Instant::now));
        }
    }
}

/// A piece of a response on its way to the peer. Its request is in flight until the piece was sent.
pub(super) struct Chunk {
    bytes: Bytes,
    /// How much memory it holds. Files are shared by all responses and count nothing.
    held: usize,
    request: InFlight,
}

impl Chunk {
    pub(super) fn new(bytes: Bytes, request: InFlight) -> Self {
        let held = if bytes.is_unique() { bytes.len() } else { 0 };
        request.0.activity.unsent.fetch_add(held, Relaxed);
        request.0.activity.unsent_in_all.fetch_add(held, Relaxed);
        request.piece_begins();
        Self { bytes, held, request }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if count > 0 && self.bytes.has_remaining() && !self.request.0.endless.load(Relaxed) {
            self.request.sending();
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.request.0.activity.unsent.fetch_sub(self.held, Relaxed);
        self.request.0.activity.unsent_in_all.fetch_sub(self.held, Relaxed);
        self.request.piece_ends();
    }
}

/// A stream that reports what passes through it.
pub(super) struct Watched<S> {
    pub(super) stream: S,
    pub(super) activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.activity.received(&buffer.filled()[before..]);
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.wrote(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.activity.wrote(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
