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
    response_body::ResponseBody,
    strangers::{Stranger, Strangers},
    timeouts::{Activity, Deadline, Endless, InFlight, Watched},
};
use crate::http::{
    call::LOG_POSITION,
    limits::{
        CONNECTION_WINDOW, HEAD_MAX, HEADERS_MAX, PRESSURE_TIMEOUT, STREAM_WINDOW, STREAMS_MAX, Settings,
    },
    pipeline::{self, Answer},
    request_body::RequestBody,
    route::Routers,
    service::Service,
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

/// What ends the wait of a connection.
enum Event {
    /// It is over, and why if it did not end well.
    Ended(Result<(), String>),
    /// Something else is expected of it.
    Expected(Stage),
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
        let mut news = stage.clone();
        loop {
            let mut changed = pin!(stage.changed());
            let mut is_waiting = false;
            let event = poll_fn(|context| {
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(Event::Ended(ended.map_err(|error| {
                        self.report_unparsed(peer, &*error);
                        error.to_string()
                    })));
                }
                // The watchdog looks after the connection has moved, at the state that is now.
                if watchdog.poll(context).is_ready() {
                    return Poll::Ready(Event::Ended(Err("the peer took too long".into())));
                }
                // Nobody tells a peer to leave once it is known.
                if !stranger.is_known() && told_to_leave.as_mut().poll(context).is_ready() {
                    let reason = "it was idle, and another one needed the place";
                    return Poll::Ready(Event::Ended(Err(reason.into())));
                }
                // Looking costs a tenth of polling, and a task that already waits will be woken.
                let may_have_changed = !is_waiting || news.has_changed().unwrap_or(true);
                if may_have_changed && let Poll::Ready(changed) = changed.as_mut().poll(context) {
                    let stage = changed.map_or(Stage::Gone, |()| *news.borrow_and_update());
                    return Poll::Ready(Event::Expected(stage));
                }
                is_waiting = true;
                Poll::Pending
            });
            match event.await {
                Event::Ended(Ok(())) | Event::Expected(Stage::Gone) => return,
                Event::Ended(Err(reason)) => {
                    tracing::debug!("connection closed: {reason}");
                    return;
                }
                Event::Expected(Stage::Serving) => {}
                Event::Expected(Stage::Leaving) => connection.as_mut().graceful_shutdown(),
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
        self: &Arc<Self>,
        request: hyper::Request<Incoming>,
        peer: IpAddr,
        in_flight: InFlight,
        caller: &Arc<Stranger>,
    ) -> impl Future<Output = Result<hyper::Response<ResponseBody>, Infallible>> + use<> {
        let answer = if request.version() < Version::HTTP_2 {
            self.process(request, peer, &in_flight)
        } else {
            // Many streams may arrive at once. Each has its turn, and sees how much the responses before it hold.
            let (connections, in_flight) = (self.clone(), in_flight.clone());
            Answer::Later(Box::pin(
                async move { connections.process(request, peer, &in_flight).response().await },
            ))
        };
        match answer {
            Answer::Now(response) => Either::Left(ready(Ok(send(response, in_flight, caller)))),
            Answer::Later(response) => {
                let caller = caller.clone();
                Either::Right(async move { Ok(send(response.await, in_flight, &caller)) })
            }
        }
    }

    fn process(&self, request: hyper::Request<Incoming>, peer: IpAddr, in_flight: &InFlight) -> Answer {
        if has_too_many_headers(&request) {
            self.service.request_log.record_unparsed(peer, "too many header fields");
            return Answer::Now(header_fields_too_large());
        }
        let request = RequestBody::guard(request, self.settings.body_timeout, in_flight);
        let router = if in_flight.has_room() { &self.routers.serving } else { &self.routers.shedding };
        pipeline::answer(router, request, peer, in_flight.since())
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
    /// Whether the alarm will wake the connection: then it need not be polled until it rings.
    is_set: bool,
    /// When the alarm rang last: it never rings twice at once.
    looked: Instant,
}

impl Watchdog {
    fn new(activity: Arc<Activity>, settings: Settings) -> Self {
        let alarm = Box::pin(time::sleep_until(activity.deadline(&settings).look));
        Self { activity, settings, alarm, is_set: false, looked: Instant::now() }
    }

    /// Ready when the connection is overdue.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Deadline { close, look } = self.activity.deadline(&self.settings);
            let ring = look.max(self.looked + PRESSURE_TIMEOUT).min(close);
            if ring < self.alarm.deadline() {
                self.reset(ring);
            }
            if self.is_set && !self.alarm.is_elapsed() {
                return Poll::Pending;
            }
            self.is_set = true;
            task::ready!(self.alarm.as_mut().poll(context));
            self.looked = Instant::now();
            if close <= self.looked {
                return Poll::Ready(());
            }
            // An HTTP/2 stream may end without the connection being polled: be back before it has idled too long.
            self.reset(close.min(self.looked + self.settings.idle_timeout));
        }
    }

    fn reset(&mut self, ring: Instant) {
        self.alarm.as_mut().reset(ring);
        self.is_set = false;
    }
}

#[cfg(test)]
mod tests;
