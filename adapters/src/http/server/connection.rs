//! One connection: TLS handshake, HTTP/1 or HTTP/2, and graceful shutdown.

use std::{convert::Infallible, io, pin::pin, sync::Arc};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header::CONTENT_LENGTH},
    response::Response,
};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body as _, Frame, Incoming},
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
use tokio_util::either::Either;
use tower::Service as _;

use super::{
    Tls,
    activity::{Activity, count_chunk},
    instrumented::{InstrumentedStream, wrap_body},
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
}

impl Shared {
    pub(super) fn new(router: Router, service: Arc<Service>) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // A client that has shut down its sending side still gets its response.
        builder.http1().max_buf_size(HEAD_MAX as usize).half_close(true);
        builder
            .http2()
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEAD_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Self { builder, router, service }
    }
}

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) activity: Arc<Activity>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.activity.end();
    }
}

impl Connection {
    /// Serves the connection until it ends, its client takes too long, or the connection is evicted. When `draining`
    /// becomes true, requests in flight are finished.
    pub(super) async fn run<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        self,
        stream: S,
        discard_unread: fn(&S),
        tls: Option<Arc<Tls>>,
        mut draining: watch::Receiver<bool>,
    ) {
        let Self { shared, activity } = &self;
        let stream = InstrumentedStream { stream, activity: activity.clone(), discard_unread };
        let serve = async {
            let stream = tokio::select! {
                biased;
                stream = async {
                    io::Result::Ok(match tls {
                        None => Either::Left(stream),
                        Some(tls) => Either::Right(Box::new(tls.accept(stream).await?)),
                    })
                } => stream?,
                _ = draining.wait_for(|draining| *draining) => return Ok(()),
            };
            let service = service_fn(|request| respond(shared.router.clone(), request, activity));
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
            () = activity.expired() => Err("evicted, or its client took too long".into()),
        };
        let Err(reason) = ended else { return };
        // The HTTP parser sends its own response, so such a request is logged here.
        if reason.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            shared.service.request_log.record_unparsed(activity.peer, &reason.to_string());
        }
        tracing::debug!(target: "petstore::http", client = %activity.peer, %reason, "connection closed");
    }
}

/// Routes a request, and prepares its response for hyper.
// Not an `async fn`: its future would store the request twice, as an argument and in the future that it awaits.
fn respond(
    mut router: Router,
    request: Request<Incoming>,
    activity: &Arc<Activity>,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    let in_flight = activity.begin_request(&request);
    let mut request = wrap_body(request, &in_flight);
    request.extensions_mut().insert(in_flight.clone());
    // `Router::poll_ready` always returns ready, so it is not called.
    let response = router.call(request);
    async move {
        let (mut head, mut body) = response.await?.into_parts();
        // axum adds a length to every empty body, but these responses have none.
        if matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            head.headers.remove(CONTENT_LENGTH);
        }
        let count = move |bytes| count_chunk(bytes, in_flight.clone());
        // A body of known length is in memory as a whole, but hyper would not ask for it before the client has opened its
        // window.
        let whole = if body.size_hint().exact().is_some() { body.frame().await } else { None };
        let body = match whole.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(whole))) => Body::from(count(whole)),
            _ => Body::new(body.map_frame(move |frame| frame.map_data(&count))),
        };
        Ok(Response::from_parts(head, body))
    }
}

#[cfg(test)]
mod tests;
