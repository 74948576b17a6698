//! What a connection is doing, and until when it may go on like that.
//!
//! hyper closes no peer that sends nothing, its header timeout also ends idle connections, and it has no timeout
//! for writing. So the connection is watched from both sides: the stream reports bytes ([`Watched`]), the service
//! reports requests ([`InFlight`]), and from the two follows what the peer owes next:
//!
//! | state | begins | may last |
//! |---|---|---|
//! | head | with the connection, and with the first byte after idling; more bytes do not prolong it | `head` |
//! | request in flight | when its head is complete, until its answer was handed over and its body read | `request` |
//! | idle | when nothing is in flight any more | `idle` |
//! | stalled | when the peer takes none of what is to be written, whatever else goes on | `write` |
//!
//! An HTTP/2 connection is idle when no stream is open: its heads come in frames that only hyper understands.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::limits::Settings;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The state of one connection, shared by its stream, its requests and its watchdog.
pub(super) struct Activity(Mutex<State>);

struct State {
    waiting: Waiting,
    protocol: Protocol,
    /// Oldest first.
    in_flight: Vec<(u64, Instant)>,
    /// Requests begun so far; their numbers tell them apart.
    begun: u64,
    stalled: Option<Instant>,
}

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

impl Activity {
    /// A new connection owes a head.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            waiting: Waiting::ForHead(Instant::now()),
            protocol: Protocol::Unknown(0),
            in_flight: Vec::with_capacity(1),
            begun: 0,
            stalled: None,
        })))
    }

    /// A request begins. It is in flight until the last clone of the guard is gone.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut state = self.0.lock();
        state.begun += 1;
        let number = state.begun;
        state.in_flight.push((number, Instant::now()));
        InFlight(Arc::new(Guard { activity: self.clone(), number }))
    }

    /// When the state it is in now will have lasted too long.
    pub(super) fn deadline(&self, settings: &Settings) -> Instant {
        let state = self.0.lock();
        let deadline = match (state.in_flight.first(), &state.waiting) {
            (Some((_, since)), _) => *since + settings.request_timeout(),
            (None, Waiting::ForHead(since)) => *since + settings.head_timeout,
            (None, Waiting::ForAnything(since)) => *since + settings.idle_timeout,
        };
        state.stalled.map_or(deadline, |since| deadline.min(since + settings.write_timeout))
    }

    fn received(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.0.lock();
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
        let mut state = self.0.lock();
        match outcome {
            Poll::Pending => {
                state.stalled.get_or_insert_with(Instant::now);
            }
            Poll::Ready(_) => state.stalled = None,
        }
    }

    fn end(&self, number: u64) {
        let mut state = self.0.lock();
        state.in_flight.retain(|(other, _)| *other != number);
        if state.in_flight.is_empty() {
            state.waiting = Waiting::ForAnything(Instant::now());
        }
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
pub(super) struct InFlight(#[expect(dead_code, reason = "held for its end")] Arc<Guard>);

struct Guard {
    activity: Arc<Activity>,
    number: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.activity.end(self.number);
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
