//! The bodies of requests. The rest of a body that the service does not read is drained within bounds, so that the client
//! sees its response.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{Request, Version, header::EXPECT},
};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time;

use super::activity::InFlightRequest;
use crate::http::settings::DRAIN_MAX;

/// Timeout for draining. A slower client may not see the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A request body that counts what it has received, and drains its rest when it is dropped before its end.
struct RequestBody {
    incoming: Option<Incoming>,
    is_drained: bool,
    /// The bytes received so far, which the reader of the body keeps.
    received: usize,
    request: Arc<InFlightRequest>,
}

pub(super) fn wrap_body(request: Request<Incoming>, in_flight: &Arc<InFlightRequest>) -> Request<Body> {
    if request.body().is_end_stream() {
        return request.map(|_| Body::empty());
    }
    // A client that waits for `100 Continue` has not sent its body. An HTTP/2 stream could be reset, but some clients
    // then drop the response.
    let is_drained = request.version() == Version::HTTP_2 || !request.headers().contains_key(EXPECT);
    request.map(|incoming| {
        Body::new(RequestBody {
            incoming: Some(incoming),
            is_drained,
            received: 0,
            request: in_flight.clone(),
        })
    })
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // hyper has sent `100 Continue`, so the client sends its body.
        self.is_drained = true;
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(incoming).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.request.body_received(data.len());
            self.received += data.len();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.request.body_ended(self.received);
        if let Some(incoming) = self.incoming.take()
            && self.is_drained
            && !incoming.is_end_stream()
        {
            tokio::spawn(drain(incoming, self.request.clone()));
        }
    }
}

/// Reads and discards a body. Its request stays in flight until then.
async fn drain(mut incoming: Incoming, request: Arc<InFlightRequest>) {
    let _ = time::timeout(DRAIN_TIMEOUT, async {
        let mut drained = 0;
        while drained <= DRAIN_MAX
            && let Some(Ok(frame)) = incoming.frame().await
        {
            let length = frame.data_ref().map_or(0, Bytes::len);
            request.body_received(length);
            request.body_ended(length);
            drained += length as u64;
        }
    })
    .await;
    request.body_ended(0);
}
