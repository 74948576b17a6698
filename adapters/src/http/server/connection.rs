//! One connection: TLS handshake, HTTP/1 or HTTP/2, request bodies, and graceful shutdown.

use std::{
    convert::Infallible,
    io::{self, IoSlice},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{
        Request, StatusCode, Version,
        header::{ALLOW, CONTENT_LENGTH, EXPECT},
    },
    response::Response,
};
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _, future::BoxFuture, stream};
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    rt::Executor,
    service::service_fn,
};
use hyper_util::{rt::TokioIo, server::conn::auto};
use rustls::ServerConnection;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
    task, time,
};
use tokio_util::either::Either;
use tower::Service as _;

use super::activity::{Activity, InFlightRequest, READ_BUDGET, count_chunk};
use crate::http::settings::DRAIN_MAX;

/// Maximum size of the head of a request, in bytes.
const HEAD_MAX: u32 = 16 * 1024;
/// Maximum number of open HTTP/2 streams per connection.
const STREAMS_MAX: u32 = 128;
/// Bytes that an HTTP/2 client may send before the service reads them: on one stream a whole body, and on all streams.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;

/// Maximum number of bytes that the TLS library holds until the socket takes them: two records. Shorter writes are slower.
const TLS_BUFFER: usize = 32 * 1024;
/// Timeout for draining a request body. A slower client may not see the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Hands the HTTP/2 streams of a connection to its task: when it is evicted, everything that they hold is free.
#[derive(Clone)]
struct Streams(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // Fails when the connection has ended.
        let _ = self.0.send(stream.boxed());
    }
}

/// The socket of a connection. It counts what it receives, and its end frees the slot.
pub(super) struct Socket<S> {
    pub(super) stream: S,
    pub(super) activity: Arc<Activity>,
    /// Makes the end discard what the client has not read.
    pub(super) discard_unread: fn(&S),
    /// The bytes received since other connections could run.
    pub(super) received: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.received >= READ_BUDGET {
            self.received = 0;
            // Wakes the task after others have run and the runtime has looked for events.
            let _ = pin!(task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let received = buffer.filled().len() - before;
        self.received = if polled.is_pending() { 0 } else { self.received + received };
        self.activity.received(received);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Drop for Socket<S> {
    fn drop(&mut self) {
        if self.activity.end() {
            (self.discard_unread)(&self.stream);
        }
    }
}

/// Serves a connection until it ends, its client takes too long, or it is evicted. When the listener drains,
/// requests in flight are finished.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    socket: Socket<S>,
    router: Router,
) {
    let activity = socket.activity.clone();
    let (opening, mut opened) = mpsc::unbounded_channel();
    let mut draining = activity.listener.draining.subscribe();
    let mut builder = auto::Builder::new(Streams(opening));
    // A client that has shut down its sending side still gets its response.
    builder.http1().max_buf_size(HEAD_MAX as usize).half_close(true);
    builder
        .http2()
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let serving = async {
        let stream = match &activity.listener.tls {
            None => Either::Left(socket),
            Some(tls) => {
                let limit = |session: &mut ServerConnection| session.set_buffer_limit(Some(TLS_BUFFER));
                Either::Right(Box::new(tls.acceptor().accept_with(socket, limit).await?))
            }
        };
        let responding = service_fn(|request| respond(router.clone(), request, &activity));
        let mut http = pin!(builder.serve_connection(TokioIo::new(stream), responding));
        tokio::select! {
            // A request that waits in the socket when the shutdown begins gets its response. hyper-util's
            // `GracefulShutdown` checks for the shutdown first, and would close its connection.
            biased;
            ended = http.as_mut() => return ended,
            _ = draining.wait_for(Option::is_some) => {}
        }
        http.as_mut().graceful_shutdown();
        http.await
    };
    let streams = stream::poll_fn(|context| opened.poll_recv(context));
    let running = async {
        tokio::select! {
            biased;
            ended = serving => ended,
            // Never ends: the builder may open another stream.
            () = streams.for_each_concurrent(None, |stream| stream) => Ok(()),
        }
    };
    let ended = activity.supervise(running).await.unwrap_or_else(|reason| Err(reason.into()));
    let Err(reason) = ended else { return };
    // The HTTP parser sends its own response, so such a request is logged here.
    if reason.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
        (activity.listener.log_unparsed)(activity.peer, &reason.to_string());
    }
    tracing::debug!(target: "petstore::http", client = %activity.peer, %reason, "connection closed");
}

/// Routes a request, and prepares its response for hyper.
// Not an `async fn`: its future would store the request twice, as an argument and in the future that it awaits.
fn respond(
    mut router: Router,
    request: Request<Incoming>,
    activity: &Arc<Activity>,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    let (in_flight, version) = (activity.begin_request(&request), request.version());
    let mut request = wrap_body(request, &in_flight);
    request.extensions_mut().insert(in_flight.clone());
    // `Router::poll_ready` always returns ready, so it is not called.
    router.call(request).map_ok(move |mut response| {
        // axum adds a length to every empty body, but these responses have none.
        if matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        // axum adds it to every response to a method that the path lacks, also to a 401, which must not show that the path
        // exists.
        if response.status() != StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().remove(ALLOW);
        }
        let count = move |bytes| count_chunk(bytes, in_flight.clone());
        response.map(|body| {
            // hyper drops an empty body when its head is queued, but h2 holds the head until it is written.
            if version == Version::HTTP_2 && body.is_end_stream() {
                return Body::from_stream(stream::iter([Ok::<_, Infallible>(count(Bytes::new()))]));
            }
            Body::new(body.map_frame(move |frame| frame.map_data(&count)))
        })
    })
}

/// A request body that counts what it has received. When it is dropped before its end, the rest is drained within bounds, so
/// that the client sees its response.
struct RequestBody {
    incoming: Body,
    is_drained: bool,
    /// The bytes received so far, which the reader of the body keeps.
    received: usize,
    request: Arc<InFlightRequest>,
}

fn wrap_body(request: Request<Incoming>, in_flight: &Arc<InFlightRequest>) -> Request<Body> {
    if request.body().is_end_stream() {
        return request.map(|_| Body::empty());
    }
    // A client that waits for `100 Continue` has not sent its body. An HTTP/2 stream could be reset, but some clients
    // then drop the response.
    let is_drained = request.version() == Version::HTTP_2 || !request.headers().contains_key(EXPECT);
    request.map(|incoming| {
        let incoming = Body::new(incoming);
        Body::new(RequestBody { incoming, is_drained, received: 0, request: in_flight.clone() })
    })
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // hyper has sent `100 Continue`, so the client sends its body.
        self.is_drained = true;
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.request.body_received(data.len());
            self.received += data.len();
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.request.body_ended(self.received);
        if self.is_drained && !self.incoming.is_end_stream() {
            tokio::spawn(drain(mem::take(&mut self.incoming), self.request.clone()));
        }
    }
}

/// Reads and discards a body. Its request stays in flight until then.
async fn drain(incoming: Body, request: Arc<InFlightRequest>) {
    let mut rest = Limited::new(incoming, DRAIN_MAX);
    let _ = time::timeout(DRAIN_TIMEOUT, async {
        while let Some(Ok(frame)) = rest.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            request.body_received(length);
            request.body_ended(length);
        }
    })
    .await;
    request.body_ended(0);
}

#[cfg(test)]
mod tests;
