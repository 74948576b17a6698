//! One connection: TLS handshake, HTTP/1 or HTTP/2, and graceful shutdown.

use std::{convert::Infallible, error::Error, net::IpAddr, pin::pin, sync::Arc};

use axum::{
    Router,
    extract::ConnectInfo,
    http::{Request, Response, StatusCode, header::CONTENT_LENGTH},
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};
use tokio_util::either::Either;
use tower::ServiceExt as _;

use super::{
    Settings,
    admission::Slot,
    instrumented::{Endless, InstrumentedStream, ResponseBody},
    request_body,
    timeouts::{Extent, InFlightRequest},
    tls::Tls,
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

/// The end of a connection that did not end well.
type CloseReason = Box<dyn Error + Send + Sync>;

/// The client of a request, for the middleware.
#[derive(Clone)]
pub(in crate::http) struct Peer {
    pub(in crate::http) address: IpAddr,
    pub(in crate::http) request: InFlightRequest,
}

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
    pub(super) peer: IpAddr,
    pub(super) slot: Slot,
}

impl Connection {
    /// Serves the connection until it ends. When `draining` becomes true, requests in flight are finished.
    pub(super) async fn run(
        self,
        stream: TcpStream,
        tls: Option<Arc<Tls>>,
        mut draining: watch::Receiver<bool>,
    ) {
        let connection = Arc::new(self);
        let serve = async {
            let stream = match tls {
                None => Either::Left(stream),
                Some(tls) => tokio::select! {
                    stream = tls.accept(stream) => Either::Right(Box::new(stream?)),
                    _ = draining.wait_for(|draining| *draining) => return Ok(()),
                },
            };
            connection.serve(stream, draining).await
        };
        connection.watch(serve).await;
    }

    /// Runs `serve` until it ends, the client is too slow, or the connection is evicted.
    async fn watch(&self, serve: impl Future<Output = Result<(), CloseReason>>) {
        let ended = tokio::select! {
            // The second branch inspects the state after the connection has made progress.
            biased;
            ended = serve => ended,
            () = self.slot.activity.expired(&self.shared.settings) => Err("timed out, or evicted while idle and unauthenticated".into()),
        };
        let Err(reason) = ended else { return };
        // The HTTP parser sends its own response, so such a request is logged here.
        if reason.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            self.shared.service.request_log.record_unparsed(self.peer, &reason.to_string());
        }
        tracing::debug!(target: "petstore::http", client = %self.peer, %reason, "connection closed");
    }

    async fn serve<S>(
        self: &Arc<Self>,
        stream: S,
        mut draining: watch::Receiver<bool>,
    ) -> Result<(), CloseReason>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = InstrumentedStream { stream, activity: self.slot.activity.clone() };
        let connection = self.clone();
        let service = service_fn(move |request| {
            let in_flight = connection.slot.activity.begin();
            connection.clone().respond(request, in_flight)
        });
        let mut http = pin!(self.shared.builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // A request that waits in the socket when the shutdown begins gets its response. hyper-util's
            // `GracefulShutdown` checks for the shutdown first, and would close its connection.
            biased;
            ended = http.as_mut() => return ended,
            _ = draining.wait_for(|draining| *draining) => {}
        }
        self.slot.activity.drain();
        http.as_mut().graceful_shutdown();
        http.await
    }

    async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        in_flight: InFlightRequest,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let mut request = request_body::wrap(request, &in_flight);
        request.extensions_mut().insert(ConnectInfo(Peer { address: self.peer, request: in_flight.clone() }));
        let Ok(mut response) = self.shared.router.clone().oneshot(request).await;
        // axum adds a length to every empty body, but these responses have none.
        if matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        let is_endless = response.extensions().get::<Endless>().is_some();
        let is_authenticated =
            in_flight.response_began(if is_endless { Extent::Endless } else { Extent::Bounded });
        if is_authenticated {
            self.slot.mark_authenticated();
        } else if !self.slot.is_of_trusted_proxy() {
            self.slot.activity.evict_if_flooded();
        }
        Ok(response.map(|body| ResponseBody { body, request: in_flight }))
    }
}

#[cfg(test)]
mod tests;
