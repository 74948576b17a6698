//! The stream of a connection, the bodies of its requests and the chunks of its responses, which report to its
//! [`Activity`]. The rest of a body that the service does not read is drained within bounds, so that the client sees its
//! response.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::{Request, Version, header::EXPECT},
};
use bytes::BufMut as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Buf, Frame, Incoming, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time,
};

use super::timeouts::{Activity, InFlightRequest};
use crate::http::error::ApiError;

/// Maximum number of bytes that are drained. A client that is still sending when the connection closes gets a broken
/// pipe instead of the response.
pub(in crate::http) const DRAIN_MAX: u64 = 4 * 1024 * 1024;

/// Timeout for draining. A slower client may not see the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Vectored writes of up to this many bytes are joined into one slice. The kernel takes a tenth longer to write two
/// slices than one, which is 2 % of the time of a request for 20 pets.
const JOINED_MAX: usize = 2 * 1024;

/// A stream that reports received bytes and stalled writes, and joins small vectored writes.
pub(super) struct InstrumentedStream<S> {
    pub(super) stream: S,
    pub(super) activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for InstrumentedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.activity.received(&buffer.filled()[before..]);
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InstrumentedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.wrote(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if slices.len() == 1 || length > JOINED_MAX {
            let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
            self.activity.wrote(&outcome);
            return outcome;
        }
        let mut joined = [0; JOINED_MAX];
        let mut rest = &mut joined[..];
        for slice in slices {
            rest.put_slice(slice);
        }
        self.poll_write(context, &joined[..length])
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A chunk of a response. It keeps its request in flight until the client has read it.
pub(super) struct Chunk {
    bytes: Bytes,
    /// The memory that the chunk holds: none if it is a part of a file that all responses share.
    held: usize,
    request: Arc<InFlightRequest>,
}

impl Chunk {
    pub(super) fn new(bytes: Bytes, request: Arc<InFlightRequest>) -> Self {
        let held = if bytes.is_unique() { bytes.len() } else { 0 };
        request.chunk_began(held);
        Self { bytes, held, request }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if count > 0 && self.bytes.has_remaining() {
            self.request.chunk_advanced();
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.request.chunk_ended(self.held);
    }
}

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
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(incoming).poll_frame(context)).transpose()?;
        let length = frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
        self.received += length;
        if !self.request.body_received(length) {
            // Without its rest, the connection closes (HTTP/1) or the stream is reset (HTTP/2).
            self.incoming = None;
            return Poll::Ready(Some(Err(ApiError::OUT_OF_MEMORY.into())));
        }
        Poll::Ready(frame.map(Ok))
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
async fn drain(mut incoming: Incoming, _request: Arc<InFlightRequest>) {
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_stream_that_accepts_few_bytes_at_a_time_gets_all_of_them_in_order() {
        for length in [0, 1, JOINED_MAX - 1, JOINED_MAX, JOINED_MAX + 1, 3 * JOINED_MAX] {
            let sent: Vec<u8> = (0..=250).cycle().take(length).collect();
            let (head, body) = sent.split_at(length / 3);
            let (stream, mut client) = duplex(700);
            let activity = Activity::new(Ipv4Addr::LOCALHOST.into(), Arc::default());
            let mut stream = InstrumentedStream { stream, activity };
            let writer = async {
                let mut rest = &mut [head, b"", body].map(IoSlice::new)[..];
                while !rest.is_empty() {
                    let written = stream.write_vectored(rest).await.unwrap();
                    IoSlice::advance_slices(&mut rest, written);
                }
                drop(stream);
            };
            let mut received = vec![];
            let (outcome, ()) = tokio::join!(client.read_to_end(&mut received), writer);
            assert_eq!(outcome.unwrap(), length);
            assert!(received == sent, "{length} bytes");
        }
    }
}
