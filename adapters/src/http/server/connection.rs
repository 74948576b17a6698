//! One connection: TLS handshake, HTTP/1 or HTTP/2, and graceful shutdown.

use std::{convert::Infallible, io, pin::pin, sync::Arc};

use axum::{
    Router,
    http::{Request, Response, StatusCode, header::CONTENT_LENGTH},
};
use futures_util::TryFutureExt as _;
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body as HttpBody, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};
use tower::Service as _;

use super::{
    Settings,
    admission::Slot,
    instrumented::{Chunk, InstrumentedStream, wrap_body},
    timeouts::{Extent, InFlightRequest},
};
use crate::http::service::Service;

/// Maximum size of the head of a request, in bytes.
const HEAD_MAX: u32 = 16 * 1024;

/// Maximum number of open HTTP/2 streams per connection.
const STREAMS_MAX: u32 = 128;

/// Bytes that an HTTP/2 client may send on one stream before the service reads them: a whole body.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Bytes that an HTTP/2 client may send on all streams of a connection before the service reads them.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What all connections of a listener share.
pub(super) struct Shared {
    builder: auto::Builder<TokioExecutor>,
    router: Router,
    service: Arc<Service>,
    settings: Settings,
}

impl Shared {
    pub(super) fn new(router: Router, service: Arc<Service>, settings: Settings) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // A client that has shut down its sending side still gets its response.
        builder.http1().max_buf_size(HEAD_MAX as usize).half_close(true);
        builder
            .http2()
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Self { builder, router, service, settings }
    }
}

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: Slot,
}

impl Connection {
    /// Serves the connection until it ends, the client is too slow, or the connection is evicted. `stream` completes
    /// after the TLS handshake. When `draining` becomes true, requests in flight are finished.
    pub(super) async fn run<S>(
        self,
        stream: impl Future<Output = io::Result<S>>,
        mut draining: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Arc::new(self);
        let Self { shared, slot } = &*connection;
        let activity = &slot.activity;
        let serve = async {
            let stream = tokio::select! {
                biased;
                stream = stream => InstrumentedStream { stream: stream?, activity: activity.clone() },
                _ = draining.wait_for(|draining| *draining) => return Ok(()),
            };
            let service = service_fn(|request| connection.clone().respond(request, activity.begin()));
            let mut http = pin!(shared.builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                // A request that waits in the socket when the shutdown begins gets its response. hyper-util's
                // `GracefulShutdown` checks for the shutdown first, and would close its connection.
                biased;
                ended = http.as_mut() => return ended,
                _ = draining.wait_for(|draining| *draining) => {}
            }
            activity.drain();
            http.as_mut().graceful_shutdown();
            http.await
        };
        let ended = tokio::select! {
            // The second branch inspects the state after the connection has made progress.
            biased;
            ended = serve => ended,
            () = activity.expired(&shared.settings) => Err("timed out, or evicted while idle and unauthenticated".into()),
        };
        let Err(reason) = ended else { return };
        // The HTTP parser sends its own response, so such a request is logged here.
        if reason.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            shared.service.request_log.record_unparsed(activity.peer, &reason.to_string());
        }
        tracing::debug!(target: "petstore::http", client = %activity.peer, %reason, "connection closed");
    }

    /// Routes a request, and prepares its response for hyper.
    // Not an `async fn`: its future would store the request twice, as an argument and in the future that it awaits.
    fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        in_flight: Arc<InFlightRequest>,
    ) -> impl Future<Output = Result<Response<impl HttpBody<Data = Chunk, Error = axum::Error>>, Infallible>>
    {
        let mut request = wrap_body(request, &in_flight);
        request.extensions_mut().insert(in_flight.clone());
        // `Router::poll_ready` always returns ready, so it is not called.
        let response = self.shared.router.clone().call(request);
        response.map_ok(move |mut response| {
            // axum adds a length to every empty body, but these responses have none.
            if matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            let extent = response.extensions().get::<Extent>().copied().unwrap_or_default();
            if in_flight.response_began(extent) {
                self.slot.mark_authenticated();
            } else if self.slot.client.is_some() {
                self.slot.activity.evict_if_flooded();
            }
            // An empty body, too, keeps its request in flight until it was sent.
            let chunk = move |bytes| Chunk::new(bytes, in_flight.clone());
            response.map(|body| body.map_frame(move |frame| frame.map_data(&chunk)))
        })
    }
}

#[cfg(test)]
mod tests;
