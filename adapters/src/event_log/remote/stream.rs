//! A response with records, one per line. A task receives it. Each line is bounded in size and time, and so is the number
//! of blank lines.

use std::{sync::Arc, time::Duration};

use application::{
    ports::{Fault, LogError, Position, RECORD_MAX, ReadBound, StoredRecord},
    transfer::{Decoder, Step},
};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{self, UnboundedReceiver, UnboundedSender, error::TryRecvError},
        watch,
    },
    time::{self, Instant},
};
use tokio_util::task::AbortOnDropHandle;

/// How long the service may take to complete a line. It sends a blank line as a heartbeat every five seconds.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of heartbeats that a response may contain, in addition to one per second. A connection may deliver the
/// heartbeats of many minutes at once.
const HEARTBEATS_MAX: u64 = 1_000;
/// How much is received while the records before it are stored, in KiB. A smaller record counts as one.
const AHEAD_MAX: usize = 2 * RECORD_MAX / 1024;

/// Where a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamMode {
    /// With a manifest, at the head.
    ToHead,
    /// Never: new commits follow.
    Follow,
}

pub(super) struct RecordStream {
    pub(super) mode: StreamMode,
    /// The position of the last record that was taken.
    pub(super) position: Position,
    /// The received records, each with its share of [`AHEAD_MAX`].
    received: UnboundedReceiver<(StoredRecord, OwnedSemaphorePermit)>,
    receiving: AbortOnDropHandle<Result<(), LogError>>,
}

impl RecordStream {
    /// Receives the records after `after`, and shows the position of the last one in `changes`. After the end or an error,
    /// that is [`Position::MAX`].
    pub(super) fn new(
        body: Incoming,
        mode: StreamMode,
        after: Position,
        changes: watch::Sender<Position>,
    ) -> Self {
        changes.send_replace(after);
        let (sender, received) = mpsc::unbounded_channel();
        let receiving = tokio::spawn(async move {
            let ended = receive(body, mode, Decoder::after(after), sender, &changes).await;
            changes.send_replace(Position::MAX);
            ended
        });
        Self { mode, position: after, received, receiving: AbortOnDropHandle::new(receiving) }
    }

    /// Returns the received records. A response with an end waits for at least one; an empty result is the end.
    pub(super) async fn records(&mut self, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < bound.records && bytes < bound.bytes {
            let next = if records.is_empty() && self.mode == StreamMode::ToHead {
                self.received.recv().await.ok_or(TryRecvError::Disconnected)
            } else {
                self.received.try_recv()
            };
            match next {
                Ok((record, _)) => {
                    self.position = record.position;
                    bytes += record.bytes.len();
                    records.push(record);
                }
                // An error follows the records before it.
                Err(TryRecvError::Disconnected) if records.is_empty() => {
                    let ended = (&mut self.receiving).await;
                    ended.unwrap_or_else(|error| Err(Fault::Stopped.error(error.to_string())))?;
                    break;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Ok(records)
    }
}

/// Receives up to the manifest.
async fn receive(
    mut body: Incoming,
    mode: StreamMode,
    mut decoder: Decoder,
    records: UnboundedSender<(StoredRecord, OwnedSemaphorePermit)>,
    changes: &watch::Sender<Position>,
) -> Result<(), LogError> {
    let ahead = Arc::new(Semaphore::new(AHEAD_MAX));
    let opened = Instant::now();
    let (mut last_line, mut heartbeats) = (opened, 0);
    loop {
        let frame = time::timeout_at(last_line + LINE_TIMEOUT, body.frame()).await;
        let position = decoder.position();
        let data = match frame {
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(Some(Err(error))) => return Err(cut_off(position, &error.to_string())),
            // A line without its line break means a lost connection, never a record.
            Ok(None) if mode == StreamMode::ToHead || decoder.is_within_line() => {
                return Err(cut_off(position, "the connection was closed"));
            }
            Ok(None) => return Err(stopped(position)),
            Err(_) => return Err(cut_off(position, &format!("no complete line within {LINE_TIMEOUT:?}"))),
        };
        let mut data = &data[..];
        while !data.is_empty() {
            let position = decoder.position();
            let (used, step) = decoder.feed(data);
            data = &data[used..];
            match step {
                None => continue,
                Some(Step::Record(record)) => {
                    let size = u32::try_from(record.bytes.len().div_ceil(1024)).expect("at most 1 MiB");
                    let share = ahead.clone().acquire_many_owned(size).await;
                    // A stream that was dropped aborts this task.
                    let _ = records.send((record, share.expect("it is never closed")));
                    changes.send_replace(position.next());
                }
                Some(Step::Heartbeat) => heartbeats += 1,
                Some(Step::End) if mode == StreamMode::ToHead => return Ok(()),
                Some(Step::End) => return Err(stopped(position)),
                Some(Step::WrongManifest) => {
                    // Only the response is damaged; the log may be intact.
                    return Err(Fault::Unreachable.error(format!(
                        "the line after position {position} is a manifest that does not match the lines before it: read the log again"
                    )));
                }
                Some(Step::Damaged) => {
                    return Err(Fault::Damaged.error(format!(
                        "the service cannot read the commit at position {}, because it is damaged; the log output of the \
                         service has the reason",
                        position.next()
                    )));
                }
                Some(Step::TooLong) => {
                    return Err(foreign(position, "a line that is longer than any record"));
                }
            }
            last_line = Instant::now();
            if heartbeats > HEARTBEATS_MAX + opened.elapsed().as_secs() {
                return Err(foreign(position, "too many blank lines"));
            }
        }
    }
}

/// A stopping service ends a followed response after a complete line.
fn stopped(position: Position) -> LogError {
    Fault::Unreachable.error(format!(
        "the response ended after position {position}: the service has stopped, or the API key is no longer valid"
    ))
}

fn cut_off(position: Position, why: &str) -> LogError {
    Fault::Unreachable.error(format!(
        "the response was cut off after position {position}: {why}; check the service and the network"
    ))
}

/// An error that the next response of this server would have as well.
fn foreign(position: Position, what: &str) -> LogError {
    Fault::CannotOpen.error(format!(
        "the response has {what} after position {position}: check that this is the URL of a petstore service"
    ))
}
