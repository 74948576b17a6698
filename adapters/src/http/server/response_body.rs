//! A response body on its way to the peer: its request is in flight until the last piece of it was taken.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::Body;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::timeouts::{Chunk, InFlight};

/// Knows its length, unlike a body behind `map_frame`: so hyper writes `Content-Length` itself, without a header value
/// that has to be allocated for each response.
pub(super) struct ResponseBody {
    pub(super) body: Body,
    pub(super) request: InFlight,
}

impl HttpBody for ResponseBody {
    type Data = Chunk;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, axum::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let chunk = |bytes| Chunk::new(bytes, self.request.clone());
        Poll::Ready(Some(frame.map(|frame| frame.map_data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
