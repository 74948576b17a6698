//! One connection from its first byte to its end: HTTP/1 or HTTP/2, with timeouts, and closed gracefully when
//! the service stops.

use std::{
    convert::Infallible,
    error::Error,
    future::{poll_fn, ready},
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{self, Context, Poll},
};

use axum::{
    http::{HeaderValue, StatusCode, Version, header::CONNECTION},
    response::{IntoResponse as _, Response},
};
use futures_util::future::Either;
use hyper::{body::Incoming, service::service_fn};
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
    call::LOG_POSITION,
    connection_timeouts::{Activity, Deadline, Endless, InFlight, Watched},
    limits::{
        CONNECTION_WINDOW, HEAD_MAX, HEADERS_MAX, PRESSURE_TIMEOUT, STREAM_WINDOW, STREAMS_MAX, Settings,
    },
    pipeline::{self, Answer},
    request_body::RequestBody,
    response_body::ResponseBody,
    route::Routers,
    service::Service,
    strangers::{Stranger, Strangers},
};

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
    routers: Routers,
    service: Arc<Service>,
    builder: auto::Builder<TokioExecutor>,
    settings: Settings,
    /// Those that have to make room first.
    pub(super) strangers: Arc<Strangers>,
}

impl Connections {
    pub(super) fn new(routers: Routers, service: Arc<Service>, settings: Settings) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // A client that says it has no more to send still wants its answer.
        builder.http1().max_buf_size(HEAD_MAX).half_close(true);
        builder
            .http2()
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(HEAD_MAX).expect("a small constant"))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Self { routers, service, builder, settings, strangers: Arc::default() }
    }

    /// Serves a connection until it ends, is overdue, or is told to go. The peer is a stranger while `stream` is being
    /// made, too: that may need a handshake.
    pub(super) async fn run<S>(
        self: Arc<Self>,
        peer: IpAddr,
        stream: impl Future<Output = Option<S>>,
        mut stage: watch::Receiver<Stage>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Activity::new(self.service.unsent.clone());
        let stranger = Arc::new(self.strangers.add(&activity));
        let stream = tokio::select! {
            stream = stream => stream,
            () = stranger.told_to_leave() => None,
        };
        let Some(stream) = stream else { return };
        let mut watchdog = Watchdog::new(activity.clone(), self.settings);
        let io = TokioIo::new(Watched { stream, activity: activity.clone() });
        let (connections, caller) = (self.clone(), stranger.clone());
        let service = service_fn(move |request| connections.answer(request, peer, activity.begin(), &caller));
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let mut told_to_leave = pin!(stranger.told_to_leave());
        loop {
            // Nobody tells a peer to leave once it is known.
            let leave = poll_fn(|context| {
                if stranger.is_known() { Poll::Pending } else { told_to_leave.as_mut().poll(context) }
            });
            let watched = poll_fn(|context| {
                match connection.as_mut().poll(context) {
                    Poll::Ready(ended) => Poll::Ready(ended.map_err(|error| {
                        self.report_unparsed(peer, &*error);
                        error.to_string()
                    })),
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
                () = leave => {
                    tracing::debug!("connection closed: it was idle, and another one needed the place");
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

    /// The parser answers by itself, so nobody else knows of the request.
    fn report_unparsed(&self, peer: IpAddr, error: &(dyn Error + 'static)) {
        if let Some(error) = error.downcast_ref::<hyper::Error>().filter(|error| error.is_parse()) {
            self.service.request_log.record_unparsed(peer, &error.to_string());
        }
    }

    /// The request is in flight until the peer has taken the last piece of its response.
    fn answer(
        &self,
        request: hyper::Request<Incoming>,
        peer: IpAddr,
        in_flight: InFlight,
        caller: &Arc<Stranger>,
    ) -> impl Future<Output = Result<hyper::Response<ResponseBody>, Infallible>> + use<> {
        let answer = if has_too_many_headers(&request) {
            self.service.request_log.record_unparsed(peer, "too many header fields");
            Answer::Now(header_fields_too_large())
        } else {
            let request = RequestBody::guard(request, self.settings.body_timeout, &in_flight);
            let router = if in_flight.has_room() { &self.routers.serving } else { &self.routers.shedding };
            pipeline::answer(router, request, peer, in_flight.since())
        };
        match answer {
            Answer::Now(response) => Either::Left(ready(Ok(send(response, in_flight, caller)))),
            Answer::Later(response) => {
                let caller = caller.clone();
                Either::Right(async move { Ok(send(response.await, in_flight, &caller)) })
            }
        }
    }
}

/// Lets the peer take a response.
fn send(response: Response, in_flight: InFlight, caller: &Stranger) -> hyper::Response<ResponseBody> {
    // Only callers with a valid key are told the position.
    if !caller.is_known() && response.headers().contains_key(LOG_POSITION) {
        caller.has_shown_a_key();
    }
    if response.extensions().get::<Endless>().is_some() {
        in_flight.streaming();
    } else {
        in_flight.sending();
    }
    response.map(|body| ResponseBody { body, request: in_flight })
}

/// Whether the parser should have refused an HTTP/1 request. With a maximum of ours, hyper allocates and fills two tables
/// of that size for each request; its own maximum, which is higher, costs nothing.
fn has_too_many_headers(request: &hyper::Request<Incoming>) -> bool {
    request.version() < Version::HTTP_2 && request.headers().len() > HEADERS_MAX
}

/// The answer of the parser itself.
fn header_fields_too_large() -> Response {
    let mut response = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Wakes the connection when its state has lasted too long. The timer is not moved with every request: it may
/// ring early, and then looks at what is going on.
struct Watchdog {
    activity: Arc<Activity>,
    settings: Settings,
    alarm: Pin<Box<Sleep>>,
    /// When the alarm rang last: it never rings twice at once.
    looked: Instant,
}

impl Watchdog {
    fn new(activity: Arc<Activity>, settings: Settings) -> Self {
        let alarm = Box::pin(time::sleep_until(activity.deadline(&settings).look));
        Self { activity, settings, alarm, looked: Instant::now() }
    }

    /// Ready when the connection is overdue.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Deadline { close, look } = self.activity.deadline(&self.settings);
            let ring = look.max(self.looked + PRESSURE_TIMEOUT).min(close);
            if ring < self.alarm.deadline() {
                self.alarm.as_mut().reset(ring);
            }
            task::ready!(self.alarm.as_mut().poll(context));
            self.looked = Instant::now();
            if close <= self.looked {
                return Poll::Ready(());
            }
            // An HTTP/2 stream may end without the connection being polled: be back before it has idled too long.
            self.alarm.as_mut().reset(close.min(self.looked + self.settings.idle_timeout));
        }
    }
}

#[cfg(test)]
mod tests;
