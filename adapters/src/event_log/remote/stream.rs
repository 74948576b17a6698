//! A response with records, one per line. Each line is bounded in size and time, and so is the number of blank lines.

use std::{
    io,
    time::{Duration, Instant},
};

use application::{
    ports::{Fault, LogError, Position, RECORD_MAX, ReadBound, StoredRecord},
    transfer::{Decoder, Step},
};
use futures_util::{FutureExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, DuplexStream},
    sync::watch,
    time,
};
use tokio_util::{
    io::{InspectWriter, StreamReader},
    task::AbortOnDropHandle,
};

/// How long the service may take to complete a line. It sends a blank line as a heartbeat every five seconds.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of heartbeats that a response may contain, in addition to one per second. A connection may deliver the
/// heartbeats of many minutes at once.
const HEARTBEATS_MAX: u64 = 1_000;
/// How much is received while the records before it are stored, in bytes.
const AHEAD_MAX: usize = 2 * RECORD_MAX;
/// How much of it is taken at a time. A task may read from a pipe 128 times before it yields, and a batch ends there.
const BUFFER_BYTES: usize = 64 * 1024;

/// Where a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamMode {
    /// With a manifest, at the head.
    ToHead,
    /// Never: new commits follow.
    Follow,
}

pub(super) struct RecordStream {
    /// The end of a pipe that a task fills. The service sends a chunk per new commit, and hyper hands over one chunk at a
    /// time.
    body: BufReader<DuplexStream>,
    /// The task. `None` after its result was taken.
    receiving: Option<AbortOnDropHandle<io::Result<u64>>>,
    mode: StreamMode,
    decoder: Decoder,
    /// A record that has not been taken yet.
    next: Option<StoredRecord>,
    /// An error after records that were returned, for the next read.
    failed: Option<LogError>,
    /// When the last line was complete.
    last_line: Instant,
    opened: Instant,
    heartbeats: u64,
    /// The manifest was received.
    pub(super) has_ended: bool,
}

impl RecordStream {
    pub(super) fn new(
        body: Incoming,
        mode: StreamMode,
        after: Position,
        received: watch::Sender<Position>,
    ) -> Self {
        let now = Instant::now();
        let mut data = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
        let (pipe, body) = tokio::io::duplex(AHEAD_MAX);
        let receiving = tokio::spawn(async move {
            let mut pipe = InspectWriter::new(pipe, |bytes| {
                // A blank line is a heartbeat.
                if bytes.iter().any(|byte| *byte != b'\n') {
                    received.send_replace(Position::MAX);
                }
            });
            let copied = tokio::io::copy_buf(&mut data, &mut pipe).await;
            received.send_replace(Position::MAX);
            copied
        });
        Self {
            body: BufReader::with_capacity(BUFFER_BYTES, body),
            receiving: Some(AbortOnDropHandle::new(receiving)),
            mode,
            decoder: Decoder::after(after),
            next: None,
            failed: None,
            last_line: now,
            opened: now,
            heartbeats: 0,
            has_ended: false,
        }
    }

    /// The position of the last record that was taken.
    pub(super) fn position(&self) -> Position {
        let decoded = self.decoder.position();
        self.next.as_ref().map_or(decoded, |next| next.position.before())
    }

    /// Returns the received records. A response with an end waits for at least one; an empty result is the end.
    pub(super) async fn records(&mut self, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let (mut records, mut room) = (Vec::new(), bound.bytes);
        while records.len() < bound.records && room > 0 && !self.has_ended {
            let filled = if records.is_empty() && self.mode == StreamMode::ToHead {
                Some(self.fill_in_time().await)
            } else {
                self.fill().now_or_never()
            };
            match filled {
                None if records.is_empty() && self.last_line.elapsed() > LINE_TIMEOUT => {
                    return Err(self.late());
                }
                None => break,
                Some(Err(error)) if records.is_empty() => return Err(error),
                Some(Err(error)) => {
                    self.failed = Some(error);
                    break;
                }
                Some(Ok(())) => {}
            }
            if let Some(record) = self.next.take() {
                room = room.saturating_sub(record.bytes.len());
                records.push(record);
            }
        }
        Ok(records)
    }

    async fn fill_in_time(&mut self) -> Result<(), LogError> {
        time::timeout(LINE_TIMEOUT, self.fill()).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// Receives the next record or the manifest. Cancel-safe.
    async fn fill(&mut self) -> Result<(), LogError> {
        while self.next.is_none() && !self.has_ended {
            let bytes = match self.body.fill_buf().await {
                Ok([]) => return Err(self.ended().await),
                Ok(bytes) => bytes,
                Err(error) => return Err(self.cut_off(&error.to_string())),
            };
            let (used, step) = self.decoder.feed(bytes);
            self.body.consume(used);
            let Some(step) = step else { continue };
            self.last_line = Instant::now();
            match step {
                Step::Record(record) => self.next = Some(record),
                Step::Heartbeat => {
                    self.heartbeats += 1;
                    if self.heartbeats > HEARTBEATS_MAX + self.opened.elapsed().as_secs() {
                        return Err(self.foreign("too many blank lines"));
                    }
                }
                Step::End { .. } => self.has_ended = true,
                Step::WrongManifest => {
                    // Only the response is damaged; the log may be intact.
                    return Err(Fault::Unreachable.error(format!(
                        "the line after position {} is a manifest that does not match the lines before it: read the log again",
                        self.position()
                    )));
                }
                Step::Damaged => {
                    return Err(Fault::Damaged.error(format!(
                        "the service cannot read the commit at position {}, because it is damaged; the log output of the \
                         service has the reason",
                        self.position().next()
                    )));
                }
                Step::TooLong => return Err(self.foreign("a line that is longer than any record")),
            }
        }
        Ok(())
    }

    /// The end of the body. A stopping service ends a followed response after a complete line.
    async fn ended(&mut self) -> LogError {
        if let Some(receiving) = &mut self.receiving {
            let received = receiving.await;
            self.receiving = None;
            if let Ok(Err(error)) = received {
                return self.cut_off(&error.to_string());
            }
        }
        let position = self.position();
        // A line without its line break means a lost connection, never a record.
        if self.mode == StreamMode::ToHead || self.decoder.is_within_line() {
            return self.cut_off("the connection was closed");
        }
        Fault::Unreachable.error(format!(
            "the response ended after position {position}: the service has stopped, or the API key is no longer valid"
        ))
    }

    fn cut_off(&self, why: &str) -> LogError {
        let position = self.position();
        Fault::Unreachable.error(format!(
            "the response was cut off after position {position}: {why}; check the service and the network"
        ))
    }

    fn late(&self) -> LogError {
        self.cut_off(&format!("no complete line within {LINE_TIMEOUT:?}"))
    }

    /// An error that the next response of this server would have as well.
    fn foreign(&self, what: &str) -> LogError {
        let position = self.position();
        Fault::CannotOpen.error(format!(
            "the response has {what} after position {position}: check that this is the URL of a petstore service"
        ))
    }
}
