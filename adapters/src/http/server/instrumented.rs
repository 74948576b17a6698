//! The stream of a connection and the chunks of its responses, which report to its [`Activity`].

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Bytes;
use hyper::body::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::timeouts::{Activity, InFlightRequest};

/// A stream that reports received bytes and stalled writes.
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
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.activity.wrote(&outcome);
        outcome
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
