//! One connection from its first byte to its end: HTTP/1 or HTTP/2, watched, and asked to leave when the
//! service does.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::{self, Instant, Sleep},
};

use super::{
    activity::{Activity, InFlight, Patience, Watched},
    pipeline::{self, HEADERS_MAX},
    request_body::RequestBody,
};

/// The most bytes the head of a request may take.
const HEAD_MAX: usize = 16 * 1024;

/// How many HTTP/2 requests may be open at once on one connection.
const STREAMS_MAX: u32 = 128;

/// How much of a body an HTTP/2 peer may send before anybody reads it: a whole one.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all bodies of a connection together.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What is expected of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Serve.
    Serving,
    /// Finish what is in flight, then close.
    Leaving,
    /// Close.
    Gone,
}

/// What all connections share.
pub(super) struct Connections {
    router: Router,
    builder: auto::Builder<TokioExecutor>,
    patience: Patience,
    body_patience: Duration,
}

impl Connections {
    pub(super) fn new(router: Router, patience: Patience, body_patience: Duration) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // A client that says it has no more to send still wants its answer.
        builder.http1().max_headers(HEADERS_MAX).max_buf_size(HEAD_MAX).half_close(true);
        builder
            .http2()
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(HEAD_MAX).expect("a small constant"))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Self { router, builder, patience, body_patience }
    }

    /// Serves a connection until it ends, is overdue, or is told to go.
    pub(super) async fn run<S>(self: Arc<Self>, stream: S, mut stage: watch::Receiver<Stage>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Activity::new();
        let mut watchdog = Watchdog::new(activity.clone(), self.patience);
        let io = TokioIo::new(Watched { stream, activity: activity.clone() });
        let connections = self.clone();
        let service = service_fn(move |request| connections.clone().answer(request, activity.begin()));
        let mut connection = std::pin::pin!(self.builder.serve_connection(io, service));
        loop {
            let watched = std::future::poll_fn(|context| {
                match connection.as_mut().poll(context) {
                    Poll::Ready(ended) => Poll::Ready(ended.map_err(|error| error.to_string())),
                    // The watchdog looks after the connection has moved, at the state that is now.
                    Poll::Pending => watchdog.poll(context).map(|()| Err("the peer took too long".into())),
                }
            });
            tokio::select! {
                biased;
                ended = watched => {
                    if let Err(reason) = ended {
                        tracing::debug!("connection closed: {reason}");
                    }
                    return;
                }
                changed = stage.changed() => {
                    let now = changed.map_or(Stage::Gone, |()| *stage.borrow_and_update());
                    match now {
                        Stage::Serving => {}
                        Stage::Leaving => connection.as_mut().graceful_shutdown(),
                        Stage::Gone => return,
                    }
                }
            }
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
        in_flight: InFlight,
    ) -> Result<hyper::Response<ResponseBody>, Infallible> {
        let request = RequestBody::guard(request, self.body_patience, &in_flight);
        let response = pipeline::route(&self.router, request).await;
        Ok(response.map(|body| ResponseBody { body, _request: in_flight }))
    }
}

/// A body on its way out. The request is in flight until it was handed over.
struct ResponseBody {
    body: Body,
    _request: InFlight,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Wakes the connection when its state has lasted too long. The timer is not moved with every request: it may
/// ring early, and then looks at what is going on.
struct Watchdog {
    activity: Arc<Activity>,
    patience: Patience,
    alarm: Pin<Box<Sleep>>,
}

impl Watchdog {
    fn new(activity: Arc<Activity>, patience: Patience) -> Self {
        let alarm = Box::pin(time::sleep_until(activity.deadline(&patience)));
        Self { activity, patience, alarm }
    }

    /// Ready when the connection is overdue.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let deadline = self.activity.deadline(&self.patience);
            if deadline < self.alarm.deadline() {
                self.alarm.as_mut().reset(deadline);
            }
            ready!(self.alarm.as_mut().poll(context));
            let now = Instant::now();
            if deadline <= now {
                return Poll::Ready(());
            }
            // An HTTP/2 stream may end without the connection being polled: be back before it has idled too long.
            self.alarm.as_mut().reset(deadline.min(now + self.patience.idle));
        }
    }
}

#[cfg(test)]
mod tests;
