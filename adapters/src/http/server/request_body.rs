//! Request bodies as they come off the connection: the rest of a body that the service does not read is drained within
//! bounds, so that the client sees its response.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{Request, Version, header::EXPECT},
};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time;

use super::timeouts::InFlightRequest;

/// Maximum number of bytes that are drained. A client that is still sending when the connection closes gets a broken
/// pipe instead of the response.
pub(in crate::http) const DRAIN_MAX: u64 = 4 * 1024 * 1024;

/// Timeout for draining. A slower client may not see the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A request body that drains its rest when it is dropped before its end.
struct RequestBody {
    incoming: Option<Incoming>,
    request: InFlightRequest,
}

/// Wraps the body of a request.
pub(super) fn wrap(request: Request<Incoming>, in_flight: &InFlightRequest) -> Request<Body> {
    // A client that waits for `100 Continue` has not sent its body. An HTTP/2 stream could be reset, but some clients
    // then drop the response.
    let awaits_continue = request.version() < Version::HTTP_2 && request.headers().contains_key(EXPECT);
    request.map(|incoming| {
        if incoming.is_end_stream() {
            Body::empty()
        } else if awaits_continue {
            Body::new(incoming)
        } else {
            Body::new(RequestBody { incoming: Some(incoming), request: in_flight.clone() })
        }
    })
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(context),
            None => Poll::Ready(None),
        }
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
        if let Some(incoming) = self.incoming.take().filter(|incoming| !incoming.is_end_stream()) {
            tokio::spawn(drain(incoming, self.request.clone()));
        }
    }
}

/// Reads and discards a body. Its request stays in flight until then.
async fn drain(mut incoming: Incoming, _request: InFlightRequest) {
    let _ = time::timeout(DRAIN_TIMEOUT, async {
        let mut drained = 0;
        while drained <= DRAIN_MAX
            && let Some(Ok(frame)) = incoming.frame().await
        {
            drained += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
    })
    .await;
}
