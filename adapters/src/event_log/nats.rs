//! A log in a NATS JetStream stream: one message per commit, whose sequence is the position.
//!
//! Reading order: this file (the public API), `nats/stream.rs` (the settings of the stream, and its head),
//! `nats/reading.rs` (records), `nats/connection.rs` (requests and reconnects), `nats/durability.rs` (the promise of an
//! acknowledgement), `nats/address.rs` (the URL).

mod address;
mod connection;
mod durability;
mod reading;
mod stream;

use std::{sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, RECORD_MAX, ReadBound, Record,
    StoredRecord, Version,
};
use async_nats::{
    Client, HeaderMap, ServerInfo,
    header::NATS_EXPECTED_LAST_SEQUENCE,
    jetstream::{ErrorCode, publish::PublishAck, response::Response, stream::Info},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use uuid::Uuid;

use self::{
    address::Address,
    connection::{NatsConnection, RESPONSE_TIMEOUT},
    durability::SyncSettings,
};
use super::{ReadPurpose, announced, variable};

/// The oldest server version whose replicas serve batches of records.
const SERVER_MIN: (i64, i64) = (2, 11);
/// How long a leader may report an older state of the stream before the stream counts as replaced. A leader that was
/// frozen or cut off does not notice at once that another server has taken over.
const STALE_LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The expected sequence of a probe: no stream reaches it, and servers can parse it.
const PROBE_SEQUENCE: Position = Position(1 << 62);
/// The header that holds the commit id, so that the id can be compared without decoding the record.
const COMMIT_ID: &str = "Petstore-Commit-Id";

/// A log in a JetStream cluster, which many nodes may share.
pub struct NatsLog {
    connection: NatsConnection,
    purpose: ReadPurpose,
    known: Mutex<Known>,
    sync_settings: Arc<SyncSettings>,
    /// The last position that the leader has announced. Announcements may get lost, or be those of a replaced stream.
    announced: watch::Sender<Position>,
    /// The tasks that receive announcements and poll the monitoring endpoints. They end with the log.
    _background: JoinSet<()>,
}

/// The newest state of the stream that this node has seen.
struct Known {
    /// As last reported by the leader. The last sequence is raised by appends and reads.
    info: Info,
    /// Since when the leader has reported an older state than before, if it does.
    behind_since: Option<Instant>,
    /// The number of the connection over which the stream was last found sound. A new one may lead to another stream.
    checked_epoch: Option<u64>,
    /// A commit that this node has stored or read over that connection. Most appends are compared with it.
    newest: Version,
}

impl Known {
    fn last(&self) -> Position {
        Position(self.info.state.last_sequence)
    }

    /// Records a commit that was stored or read over the connection with this number.
    fn record(&mut self, version: Version, epoch: u64) {
        // A leader that reports less than this may be outdated.
        self.info.state.last_sequence = version.position.max(self.last()).0;
        if self.checked_epoch == Some(epoch) && version.position > self.newest.position {
            self.newest = version;
        }
    }
}

impl NatsLog {
    /// Connects to one of the servers of a `nats://[user:password@]host:port[,host:port]/STREAM` URL, and finds the stream.
    /// Without a known commit, a missing stream is created. Fails within seconds if no server responds, which may be
    /// temporary.
    pub async fn open(url: &str, known: Option<Version>) -> Result<Self, LogError> {
        Self::open_stream(url, known, ReadPurpose::Use).await
    }

    /// Opens an existing stream, without creating one. To be salvaged, it may have lost messages, or may lose some.
    pub async fn open_existing(url: &str, purpose: ReadPurpose) -> Result<Self, LogError> {
        Self::open_stream(url, Some(Version::START), purpose).await
    }

    /// The name of the stream that a URL selects. `None` if the URL names no stream.
    pub fn name_in(url: &str) -> Option<String> {
        let place = url.strip_prefix("nats://")?.split('?').next()?;
        let (_, stream) = place.rsplit_once('@').map_or(place, |(_, place)| place).split_once('/')?;
        (!stream.is_empty()).then(|| format!("nats:{stream}"))
    }

    /// Parses a URL without connecting anywhere.
    #[cfg(feature = "fuzzing")]
    pub fn check_url(url: &str) -> Result<(), LogError> {
        Address::parse(url, &|_| None).map(drop)
    }

    async fn open_stream(url: &str, known: Option<Version>, purpose: ReadPurpose) -> Result<Self, LogError> {
        let address = Address::parse(url, &variable)?;
        let connection = NatsConnection::open(address).await?;
        check_server(&connection.client)?;
        let epoch = connection.epoch();
        let info = connection.open_stream(known).await?;
        stream::head(&info, purpose)?;
        let mut background = JoinSet::new();
        let sync_settings = Arc::new(SyncSettings::open(&connection.address).await?);
        background.spawn(sync_settings.clone().poll_periodically());
        let stored = connection.client.subscribe(connection.address.subject("stored")).await;
        let mut stored =
            stored.map_err(|error| Fault::Unreachable.error(format!("cannot subscribe: {error}")))?;
        let announced = watch::Sender::default();
        let received = announced.clone();
        background.spawn(async move {
            while let Some(message) = stored.next().await {
                reading::position(&message).inspect(|position| announced::raise(&received, *position));
            }
        });
        let (checked_epoch, newest) = (Some(epoch), Version::START);
        let known = Mutex::new(Known { info, behind_since: None, checked_epoch, newest });
        Ok(Self { connection, purpose, known, sync_settings, announced, _background: background })
    }

    /// Checks that the stream drops no commits, and holds the expected one. Asks the leader only after a reconnect, or if
    /// this node does not know the commit.
    async fn check(&self, expected: Version, epoch: u64) -> Result<(), AppendError> {
        let is_checked = self.known.lock().checked_epoch == Some(epoch);
        if !is_checked {
            self.head().await.map_err(|error| match error.fault {
                Fault::Unreachable => AppendError::NotStored(error),
                _ => AppendError::Closed(error),
            })?;
        }
        if expected == Version::START || self.known.lock().newest == expected {
            return Ok(());
        }
        if expected.position == Position::START {
            return Err(AppendError::Conflict);
        }
        let found = self.connection.read_from_leader(expected.position).await;
        let found = found.map_err(AppendError::NotStored)?;
        let found = found.map_or(Version::START, |record| record.version());
        let mut known = self.known.lock();
        if known.checked_epoch == Some(epoch) {
            known.newest = found;
        }
        if found == expected { Ok(()) } else { Err(AppendError::Conflict) }
    }

    /// Publishes a commit with this id if the last one is at position `expected`.
    async fn publish(&self, expected: Position, id: Uuid, bytes: Bytes) -> Result<Position, AppendError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SEQUENCE, expected.0.to_string());
        headers.insert(COMMIT_ID, id.to_string());
        let subject = self.connection.address.subject("commits");
        let reply = self.connection.request(subject, headers, bytes, RESPONSE_TIMEOUT).await;
        let reply = reply.map_err(AppendError::NotStored)?.map_err(AppendError::Unclear)?;
        let position = expected.next();
        let error = match serde_json::from_slice::<Response<PublishAck>>(&reply.payload) {
            Ok(Response::Ok(PublishAck { sequence, stream, .. })) => {
                if sequence == position.0 && stream == self.connection.address.stream {
                    return Ok(position);
                }
                return Err(AppendError::Closed(Fault::Diverged.error(format!(
                    "the commit for position {position} was stored at sequence {sequence} of stream {stream}: another client \
                     is publishing to this stream"
                ))));
            }
            Ok(Response::Err { error }) => error,
            Err(error) => {
                let detail = format!("the acknowledgement cannot be parsed: {error}");
                return Err(AppendError::Unclear(Fault::Unreachable.error(detail)));
            }
        };
        let fault = match error.error_code() {
            ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
                return Err(AppendError::Conflict);
            }
            // The leader checks these before it proposes anything to the replicas.
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED => Fault::Full,
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Fault::TooLarge,
            // After any other error of the leader, the replicas may still store the commit.
            _ => {
                let detail = format!("NATS failed to store a commit: {error}");
                return Err(AppendError::Unclear(Fault::WriteFailed.error(detail)));
            }
        };
        Err(AppendError::NotStored(fault.error(format!("NATS rejected a commit: {error}"))))
    }

    /// Rejects the report of a leader that may have been replaced: it is older than the state `before` the request.
    fn reject_stale(&self, info: Info, before: &Info) -> Result<Info, LogError> {
        let (reported, last) = (info.state.last_sequence, before.state.last_sequence);
        let is_behind = info.created == before.created && reported < last;
        let mut known = self.known.lock();
        known.behind_since = is_behind.then(|| known.behind_since.unwrap_or_else(Instant::now));
        if known.behind_since.is_none_or(|since| since.elapsed() >= STALE_LEADER_TIMEOUT) {
            return Ok(info);
        }
        Err(Fault::Unreachable.error(format!(
            "the leader reports position {reported}, but {last} was stored: another server may have replaced it"
        )))
    }
}

#[async_trait]
impl LogSource for NatsLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let epoch = self.connection.epoch();
        // Only the leader knows that there are no more commits.
        let last = self.known.lock().last();
        if after >= last && self.head().await? <= after {
            return Ok(vec![]);
        }
        let mut found = vec![];
        if bound.records > 1 {
            found = self.connection.read_from_any_replica(after, bound).await?;
        }
        if found.is_empty() {
            found.extend(self.connection.read_from_leader(after.next()).await?);
        }
        if found.is_empty() {
            let head = self.head().await?;
            if head <= after {
                return Ok(found);
            }
            return Err(Fault::Damaged.error(format!(
                "the commit at position {} is missing, but the log continues to {head}",
                after.next()
            )));
        }
        // A replica may show a commit before the leader does, which would look like a lost commit later. The leader has
        // the commits that it has announced.
        let mut last = self.known.lock().last().max(*self.announced.borrow());
        if found.last().is_some_and(|record| record.position > last) {
            self.head().await?;
            last = self.known.lock().last();
            found.retain(|record| record.position <= last);
        }
        if let Some(newest) = found.last() {
            self.known.lock().record(newest.version(), epoch);
        }
        Ok(found)
    }

    async fn head(&self) -> Result<Position, LogError> {
        // Replies may overtake each other, so compare with the state before this request.
        let before = self.known.lock().info.clone();
        let (announced, epoch) = (*self.announced.borrow(), self.connection.epoch());
        let info = self.connection.stream_info().await;
        let info = match info.and_then(|info| self.reject_stale(info, &before)) {
            Err(error) if error.fault == Fault::Unreachable => {
                self.connection.leave_if_leaderless().await;
                return Err(error);
            }
            info => info?,
        };
        self.connection.expect_leader();
        self.sync_settings.expire().await;
        let mut known = self.known.lock();
        let was_checked = known.checked_epoch.take() == Some(epoch);
        let head = stream::head(&info, self.purpose)?;
        known.checked_epoch = Some(epoch);
        announced::confirm(&self.announced, announced, head);
        let last = Position(before.state.last_sequence);
        let is_same_log = info.created == before.created && head >= last;
        if !(is_same_log && was_checked) {
            known.newest = Version::START;
        }
        let newest = known.last();
        known.info = info;
        if is_same_log {
            known.info.state.last_sequence = newest.max(head).0;
            return Ok(head);
        }
        // Reported once; the follower then compares the log with its applied commits.
        Err(Fault::Diverged.error(format!(
            "stream {} went back from position {last} to {head}, or was recreated",
            self.connection.address.stream
        )))
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.announced.subscribe()
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        let next = self.connection.position_after(damaged).await?;
        Ok(next.unwrap_or(damaged.next()))
    }

    fn durability(&self) -> Durability {
        let known = self.known.lock();
        self.sync_settings.durability(&known.info)
    }
}

#[async_trait]
impl EventLog for NatsLog {
    /// A commit may be stored long after its append timed out: it can wait in the queue of the client, in a server or
    /// on the way to the leader. That is safe. It is stored only while `expected` is the last sequence, which never recurs,
    /// because nothing is ever deleted. So either it becomes the commit at `expected + 1`, where a writer with an unclear
    /// outcome looks for it, or it is never stored. `Nats-Msg-Id` is not used: JetStream checks duplicates before the
    /// expected sequence, and would acknowledge older content.
    ///
    /// The server compares only sequences, so the id of the expected commit is compared here. One race remains: a stream
    /// that was deleted and restored with a different history of exactly the same length accepts the commit, if that
    /// happened after this node last read the head. The follower of a shared log reads it every second.
    ///
    /// Stores only the first record: if another node had stored a commit instead, a second one that was sent at once
    /// would have the expected sequence, but continue a different history.
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let (record, epoch) = (&records[0], self.connection.epoch());
        self.check(expected, epoch).await?;
        let position = self.publish(expected.position, record.id.0, record.bytes.clone()).await?;
        self.known.lock().record(Version::at(position, record.id), epoch);
        announced::raise(&self.announced, position);
        Ok(position)
    }

    /// The leader of a cluster checks its limits before it compares the sequence, so the result is exact. A single
    /// server compares the sequence first, so only a real commit shows whether it has room.
    async fn check_writable(&self) -> Result<(), LogError> {
        let subject = self.connection.address.subject("commits");
        let outcome = tokio::select! {
            biased;
            error = self.connection.denied(&subject) => return Err(error),
            outcome = self.publish(PROBE_SEQUENCE, Uuid::nil(), Bytes::new()) => outcome,
        };
        match outcome {
            Ok(_) | Err(AppendError::Conflict) => Ok(()),
            Err(AppendError::NotStored(error) | AppendError::Unclear(error) | AppendError::Closed(error)) => {
                Err(error)
            }
        }
    }
}

fn check_server(client: &Client) -> Result<(), LogError> {
    let ((major, minor), ServerInfo { version, max_payload, .. }) = (SERVER_MIN, client.server_info());
    let rule = if !client.is_server_compatible(major, minor, 0) {
        format!("{version} is too old: petstore needs {major}.{minor} or newer")
    } else if max_payload < RECORD_MAX {
        format!("accepts messages of only {max_payload} bytes: set its max_payload to {RECORD_MAX} or more")
    } else {
        return Ok(());
    };
    Err(Fault::CannotOpen.error(format!("nats-server {rule}")))
}

#[cfg(test)]
mod tests {
    use application::log::contract;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_newest_commit_of_the_connection_is_recognised() {
        let info = json!({
            "config": { "name": "S", "retention": "limits", "storage": "file", "discard": "new", "num_replicas": 1,
                "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0 },
            "created": "2026-01-01T00:00:00Z",
            "state": { "messages": 5, "bytes": 0, "first_seq": 1, "first_ts": "2026-01-01T00:00:00Z", "last_seq": 5,
                "last_ts": "2026-01-01T00:00:00Z", "consumer_count": 0 },
        });
        let info = serde_json::from_value(info).unwrap();
        let mut known = Known { info, behind_since: None, checked_epoch: Some(1), newest: Version::START };
        let [older, newer, later] = [6, 7, 8].map(|at| Version::at(Position(at), contract::record(at).id));
        known.record(newer, 1);
        known.record(older, 1);
        assert_eq!((known.newest, known.last()), (newer, Position(7)));
        known.record(later, 2);
        assert_eq!(known.newest, newer, "another connection may lead to another log");
    }
}
