//! A response with records, one per line. Each line is bounded in size and time, and so is the number of blank lines.

use std::{
    io, mem,
    time::{Duration, Instant},
};

use application::{
    ports::{Fault, LogError, Position, RECORD_MAX, ReadBound, StoredRecord},
    transfer::Tally,
};
use bytes::Bytes;
use futures_util::{FutureExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, DuplexStream},
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
    tally: Tally,
    /// The start of an incomplete line.
    begun: Vec<u8>,
    /// A complete line that has not been taken yet.
    line: Option<Vec<u8>>,
    /// An error after records that were returned, for the next read.
    failed: Option<LogError>,
    /// When the last line was complete.
    last_line: Instant,
    opened: Instant,
    heartbeats: u64,
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
            tally: Tally::after(after),
            begun: Vec::new(),
            line: None,
            failed: None,
            last_line: now,
            opened: now,
            heartbeats: 0,
            has_ended: false,
        }
    }

    /// The position of the last record that was taken.
    pub(super) fn position(&self) -> Position {
        self.tally.position()
    }

    /// Returns the received records. A response with an end waits for at least one; an empty result is the end.
    pub(super) async fn records(&mut self, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let (mut records, mut room) = (Vec::new(), bound.bytes);
        while records.len() < bound.records && room > 0 && !self.has_ended {
            if records.is_empty() && self.mode == StreamMode::ToHead {
                self.fill_in_time().await?;
            } else {
                match self.fill().now_or_never() {
                    Some(Ok(())) => {}
                    Some(Err(error)) if records.is_empty() => return Err(error),
                    Some(Err(error)) => {
                        self.failed = Some(error);
                        break;
                    }
                    None if records.is_empty() && self.last_line.elapsed() > LINE_TIMEOUT => {
                        return Err(self.late());
                    }
                    None => break,
                }
            }
            // The last line is left to the next read, which returns no record.
            if !records.is_empty() && self.line.as_ref().is_some_and(|line| Tally::is_last_line(line)) {
                break;
            }
            if let Some(record) = self.take()? {
                room = room.saturating_sub(record.bytes.len());
                records.push(record);
            }
        }
        Ok(records)
    }

    async fn fill_in_time(&mut self) -> Result<(), LogError> {
        time::timeout(LINE_TIMEOUT, self.fill()).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// Reads up to the end of the next line that is not a heartbeat. Cancel-safe.
    async fn fill(&mut self) -> Result<(), LogError> {
        while self.line.is_none() {
            // The longest record and its line break.
            let room = RECORD_MAX + 1 - self.begun.len();
            let read = (&mut self.body).take(room as u64).read_until(b'\n', &mut self.begun).await;
            read.map_err(|error| self.cut_off(&error.to_string()))?;
            if self.begun.pop_if(|last| *last == b'\n').is_none() {
                let is_full = self.begun.len() > RECORD_MAX;
                return Err(if is_full {
                    self.foreign("a line that is longer than any record")
                } else {
                    self.ended().await
                });
            }
            self.last_line = Instant::now();
            if !self.begun.is_empty() {
                self.line = Some(mem::take(&mut self.begun));
                return Ok(());
            }
            self.heartbeats += 1;
            if self.heartbeats > HEARTBEATS_MAX + self.opened.elapsed().as_secs() {
                return Err(self.foreign("too many blank lines"));
            }
        }
        Ok(())
    }

    /// Returns the record in the received line, or `None` for the manifest.
    fn take(&mut self) -> Result<Option<StoredRecord>, LogError> {
        let Some(line) = self.line.take() else { return Ok(None) };
        if Tally::is_manifest(&line) {
            if self.tally.stated_events(&line).is_none() {
                return Err(self.damaged("is a manifest that does not match the lines before it"));
            }
            self.has_ended = true;
            return Ok(None);
        }
        let position = self.tally.position().next();
        if Tally::is_damage_notice(&line) {
            return Err(Fault::Damaged.error(format!(
                "the service cannot read the commit at position {position}, because it is damaged; the log output of the \
                 service has the reason"
            )));
        }
        let record = StoredRecord { position, id: None, bytes: Bytes::from(line) };
        self.tally.add(record.clone());
        Ok(Some(record))
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
        if self.mode == StreamMode::ToHead || !self.begun.is_empty() {
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

    fn damaged(&self, what: &str) -> LogError {
        let detail = format!("the line after position {} {what}: read the log again", self.position());
        // Only the response is damaged; the log may be intact.
        Fault::Unreachable.error(detail)
    }

    /// An error that the next response of this server would have as well.
    fn foreign(&self, what: &str) -> LogError {
        let position = self.position();
        Fault::CannotOpen.error(format!(
            "the response has {what} after position {position}: check that this is the URL of a petstore service"
        ))
    }
}
