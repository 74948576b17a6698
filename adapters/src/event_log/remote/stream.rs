//! A response with records, one per line.

use std::time::{Duration, Instant};

use application::{
    ports::{Fault, LogError, Position, RECORD_MAX, ReadBound, StoredRecord},
    transfer::Tally,
};
use bytes::{Buf as _, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time;

/// How long the service may send nothing. It sends a heartbeat every five seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamMode {
    /// With a manifest, at the head.
    ToHead,
    /// Never: new commits follow.
    Follow,
}

pub(super) struct RecordStream {
    body: Incoming,
    /// Received bytes that are not split into lines yet.
    received: Bytes,
    mode: StreamMode,
    tally: Tally,
    /// The start of an incomplete line. A cancelled read leaves it here.
    begun: Vec<u8>,
    /// A complete line that has not been taken yet.
    line: Option<Vec<u8>>,
    heard: Instant,
    pub(super) has_ended: bool,
}

impl RecordStream {
    pub(super) fn new(body: Incoming, mode: StreamMode, after: Position) -> Self {
        let (tally, heard, received) = (Tally::after(after), Instant::now(), Bytes::new());
        Self { body, received, mode, tally, begun: vec![], line: None, heard, has_ended: false }
    }

    /// The position of the last record that was taken.
    pub(super) fn position(&self) -> Position {
        self.tally.position()
    }

    /// Returns the first record, without a timeout.
    pub(super) async fn first(&mut self) -> Result<Option<StoredRecord>, LogError> {
        self.fill().await?;
        self.take()
    }

    /// Returns the received records. A response with an end waits for at least one; an empty result is the end.
    pub(super) async fn records(&mut self, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let (mut records, mut room) = (Vec::new(), bound.bytes);
        while records.len() < bound.records && room > 0 && !self.has_ended {
            let wait = records.is_empty() && self.mode == StreamMode::ToHead;
            if self.line.is_none() && !wait && !self.received.contains(&b'\n') {
                break;
            }
            // The received line may be only a heartbeat.
            let filled = time::timeout(if wait { SILENCE_TIMEOUT } else { Duration::ZERO }, self.fill());
            match filled.await {
                Ok(filled) => filled?,
                Err(_) if wait => return Err(self.cut_off("the service sends nothing")),
                Err(_) => break,
            }
            // The manifest is left to the next read, which returns nothing.
            if !records.is_empty() && self.line.as_ref().is_some_and(|line| Tally::is_manifest(line)) {
                break;
            }
            if let Some(record) = self.take()? {
                room = room.saturating_sub(record.bytes.len());
                records.push(record);
            }
        }
        Ok(records)
    }

    /// Returns when a line is available, or after `timeout`.
    pub(super) async fn wait(&mut self, timeout: Duration) -> Result<(), LogError> {
        match time::timeout(timeout, self.fill()).await {
            Ok(filled) => filled,
            Err(_) if self.heard.elapsed() > SILENCE_TIMEOUT => {
                Err(self.cut_off("the service sends nothing"))
            }
            Err(_) => Ok(()),
        }
    }

    /// Reads up to the end of the next line that is not a heartbeat. Cancel-safe.
    async fn fill(&mut self) -> Result<(), LogError> {
        while self.line.is_none() {
            if self.received.is_empty() {
                self.received = match self.body.frame().await {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(error)) => return Err(self.cut_off(&error.to_string())),
                    None => return Err(self.ended()),
                };
                self.heard = Instant::now();
            }
            let end = self.received.iter().position(|byte| *byte == b'\n');
            let part = self.received.split_to(end.unwrap_or(self.received.len()));
            self.begun.extend_from_slice(&part);
            if end.is_some() {
                self.received.advance(1);
                self.line = Some(std::mem::take(&mut self.begun)).filter(|line| !line.is_empty());
            }
            if self.begun.len() > RECORD_MAX {
                return Err(self.damaged("is longer than any record"));
            }
        }
        Ok(())
    }

    /// Returns the record in the received line, or `None` for the manifest.
    fn take(&mut self) -> Result<Option<StoredRecord>, LogError> {
        let Some(line) = self.line.take() else { return Ok(None) };
        if Tally::is_manifest(&line) {
            if !self.tally.matches(&line) {
                return Err(self.damaged("is a manifest that does not match the lines before it"));
            }
            self.has_ended = true;
            return Ok(None);
        }
        let position = self.tally.position().next();
        let record = StoredRecord { position, id: None, bytes: Bytes::from(line) };
        self.tally.add(record.clone());
        Ok(Some(record))
    }

    /// The end of the body. A stopping service ends a followed response after a complete line.
    fn ended(&self) -> LogError {
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
        let detail = format!("the response was cut off after position {}: {why}", self.position());
        Fault::Unreachable.error(detail)
    }

    fn damaged(&self, what: &str) -> LogError {
        let detail = format!("the line after position {} {what}: read the log again", self.position());
        // Only the response is damaged; the log may be intact.
        Fault::Unreachable.error(detail)
    }
}
