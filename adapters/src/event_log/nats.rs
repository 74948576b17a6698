//! A log in a NATS JetStream stream: one message per commit, whose sequence is the position.
//!
//! Reading order: this file (the public API), `nats/stream.rs` (the settings of the stream, and its head),
//! `nats/reading.rs` (records), `nats/acknowledgement.rs` (the outcome of an append), `nats/connection.rs` (requests
//! and reconnects), `nats/durability.rs` (the promise of an acknowledgement), `nats/address.rs` (the URL).

mod acknowledgement;
mod address;
mod connection;
mod durability;
mod reading;
mod salvage;
mod stream;

use std::{fmt, sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record, StoredRecord,
    Version,
};
use async_nats::{HeaderMap, header::NATS_EXPECTED_LAST_SEQUENCE, jetstream::stream::Info};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

pub use salvage::SalvagedStream;

use self::{
    address::Address,
    connection::{NatsConnection, RESPONSE_TIMEOUT, RequestFailure},
    durability::SyncSettings,
};
use super::environment;

/// The oldest server version whose replicas serve batches of records.
const SERVER_MIN: (i64, i64) = (2, 11);
/// The delay before a commit that found no leader is sent again.
const LEADER_DELAY: Duration = Duration::from_millis(100);
/// How long a leader may report an older state of the stream before the stream counts as replaced. A leader that was
/// frozen or cut off does not notice at once that another server has taken over.
const STALE_LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The expected sequence of a probe: no stream reaches it, and servers can parse it.
const PROBE_SEQUENCE: Position = Position(1 << 62);
/// The header that holds the commit id, so that the id can be compared without decoding the record.
const COMMIT_ID: &str = "Petstore-Commit-Id";

/// A log in a JetStream cluster, which many nodes may share.
pub struct NatsLog {
    address: Address,
    connection: NatsConnection,
    /// The stream, as last reported by the leader.
    info: Mutex<Info>,
    /// When the leader last reported the stream.
    reported: Mutex<Instant>,
    /// The number of the connection over which the stream was last validated, or the error of that validation.
    validated_epoch: Mutex<Result<u64, LogError>>,
    last: Mutex<LastCommit>,
    /// Since when the leader has reported an older state of the stream than before, if it does.
    behind_since: Mutex<Option<Instant>>,
    sync_settings: Arc<SyncSettings>,
    /// The last position that the leader has announced. Announcements can get lost, or come from a stream that has been
    /// replaced.
    announced: watch::Sender<Position>,
    /// The tasks that receive announcements and poll the monitoring endpoints. They end with the log.
    _background: JoinSet<()>,
}

/// The newest commit that this node has stored or read. Most appends are compared with it instead of asking the leader
/// first.
#[derive(Debug, Default)]
struct LastCommit {
    version: Version,
    /// The number of the connection it came over. A new connection may lead to a different log.
    epoch: u64,
}

impl LastCommit {
    /// Records a commit that was stored or read, unless a newer one came over the same connection.
    fn record(&mut self, version: Version, epoch: u64) {
        if version.position > self.version.position || epoch != self.epoch {
            *self = Self { version, epoch };
        }
    }

    /// Whether this is the expected commit and came over the connection with this number.
    fn is(&self, expected: Version, epoch: u64) -> bool {
        self.version == expected && self.epoch == epoch
    }
}

impl NatsLog {
    /// Connects to one of the servers of a `nats://[user:password@]host:port[,host:port]/STREAM` URL, and finds or
    /// creates the stream. Fails within seconds if no server responds, which may be temporary.
    pub fn open(url: &str) -> BoxFuture<'_, Result<Self, LogError>> {
        Box::pin(async move {
            let (address, connection) = connect(url).await?;
            stream::ensure(&connection, &address).await?;
            Self::attach(address, connection).await
        })
    }

    /// Opens an existing stream, without creating one.
    pub fn open_existing(url: &str) -> BoxFuture<'_, Result<Self, LogError>> {
        Box::pin(async move {
            let (address, connection) = connect(url).await?;
            stream::find(&connection, &address).await?;
            Self::attach(address, connection).await
        })
    }

    /// Opens a stream that may have lost messages, to read the remaining ones.
    pub fn salvage(url: &str) -> BoxFuture<'_, Result<SalvagedStream, LogError>> {
        Box::pin(async move {
            let (address, connection) = connect(url).await?;
            let last = Position(stream::leader_info(&connection, &address).await?.state.last_sequence);
            Ok(SalvagedStream { stream: address.stream, connection, last })
        })
    }

    /// The name of the stream that a URL selects. `None` if the URL names no stream.
    pub fn name_in(url: &str) -> Option<String> {
        let place = url.strip_prefix("nats://")?.split('?').next()?;
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        let (_, stream) = place.split_once('/')?;
        (!stream.is_empty()).then(|| format!("nats:{stream}"))
    }

    /// Parses a URL without connecting anywhere.
    #[cfg(feature = "fuzzing")]
    pub fn check_url(url: &str) -> Result<(), LogError> {
        Address::parse(url, &|_| None).map(drop)
    }

    async fn attach(address: Address, connection: NatsConnection) -> Result<Self, LogError> {
        let epoch = connection.epoch();
        let info = stream::leader_info(&connection, &address).await?;
        stream::head(&info)?;
        let sync_settings = Arc::new(SyncSettings::new(&address));
        sync_settings.refresh_if_changed(epoch, &info).await;
        sync_settings.check_sync_always()?;
        let mut background = JoinSet::new();
        let announced = listen(&connection, &address, &mut background).await?;
        if sync_settings.is_monitored() {
            background.spawn(sync_settings.clone().refresh_periodically());
        }
        Ok(Self {
            address,
            connection,
            info: Mutex::new(info),
            reported: Mutex::new(Instant::now()),
            validated_epoch: Mutex::new(Ok(epoch)),
            last: Mutex::default(),
            behind_since: Mutex::default(),
            sync_settings,
            announced,
            _background: background,
        })
    }

    /// The subject and the headers of an append right after `expected`.
    fn append_headers(&self, expected: Position) -> (String, HeaderMap) {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SEQUENCE, expected.0.to_string());
        (stream::commits_subject(&self.address.stream), headers)
    }

    fn known(&self) -> Position {
        Position(self.info.lock().state.last_sequence)
    }

    /// Whether the leader has only recently begun to report an older state of the stream: another server may have
    /// replaced it.
    fn may_be_stale(&self, info: &Info, before: &Info) -> bool {
        let mut since = self.behind_since.lock();
        if info.created != before.created || info.state.last_sequence >= before.state.last_sequence {
            *since = None;
            return false;
        }
        since.get_or_insert_with(Instant::now).elapsed() < STALE_LEADER_TIMEOUT
    }

    /// Rejects a stream that may drop commits or has dropped some. Every read of the head checks the stream, and so
    /// does the first append after a reconnect.
    async fn check_stream(&self) -> Result<(), AppendError> {
        match &*self.validated_epoch.lock() {
            Ok(epoch) if *epoch == self.connection.epoch() => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(AppendError::Closed(error.clone())),
        }
        let promised = self.durability().level;
        match self.head().await {
            // The writer decides later whether that is enough.
            Ok(_) if self.durability().level < promised => Err(AppendError::NotStored(
                Fault::Unreachable.error("after a reconnect, the servers promise less durability"),
            )),
            Ok(_) => Ok(()),
            Err(error) if error.fault == Fault::Unreachable => Err(AppendError::NotStored(error)),
            Err(error) => Err(AppendError::Closed(error)),
        }
    }

    /// Whether the commit at `expected.position` is the expected one. Asks the leader, unless this node has stored or
    /// read that commit over the current connection.
    async fn holds(&self, expected: Version) -> Result<bool, LogError> {
        if expected.position == Position::START {
            return Ok(expected.commit.is_none());
        }
        let epoch = self.connection.epoch();
        if self.last.lock().is(expected, epoch) {
            return Ok(true);
        }
        let found = reading::from_leader(&self.connection, &self.address.stream, expected.position).await?;
        let mut last = self.last.lock();
        *last = LastCommit::default();
        if let Some(record) = found {
            last.record(record.version(), epoch);
        }
        Ok(last.is(expected, epoch))
    }
}

#[async_trait]
impl LogSource for NatsLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let epoch = self.connection.epoch();
        // Only the leader knows that there are no more commits.
        if after >= self.known() && self.head().await? <= after {
            return Ok(vec![]);
        }
        let mut found = reading::records(&self.connection, &self.address.stream, after, bound).await?;
        if found.is_empty() {
            let head = self.head().await?;
            if head <= after {
                return Ok(found);
            }
            let detail = format!(
                "the commit at position {} is missing, but the log continues to {head}",
                after.next()
            );
            return Err(Fault::Damaged.error(detail));
        }
        // A replica may show a commit before the leader does, which would look like a lost commit later. The leader has
        // the commits that it has announced.
        let mut known = self.known().max(*self.announced.borrow());
        if found.last().is_some_and(|record| record.position > known) {
            self.head().await?;
            known = self.known();
            found.retain(|record| record.position <= known);
        }
        if let Some(newest) = found.last() {
            self.last.lock().record(newest.version(), epoch);
            // A leader that reports less than this may be outdated.
            let last_sequence = &mut self.info.lock().state.last_sequence;
            *last_sequence = newest.position.0.max(*last_sequence);
        }
        Ok(found)
    }

    async fn head(&self) -> Result<Position, LogError> {
        // Replies may overtake each other, so compare with the state before this request.
        let before = self.info.lock().clone();
        let announced = *self.announced.borrow();
        let epoch = self.connection.epoch();
        let info = match stream::leader_info(&self.connection, &self.address).await {
            Ok(info) => info,
            Err(error) => {
                if error.fault == Fault::Unreachable {
                    self.connection.leave_if_leaderless().await;
                }
                return Err(error);
            }
        };
        if self.may_be_stale(&info, &before) {
            self.connection.leave_if_leaderless().await;
            let (reported, known) = (info.state.last_sequence, before.state.last_sequence);
            return Err(Fault::Unreachable.error(format!(
                "the leader reports position {reported}, but {known} was stored: another server may have replaced it"
            )));
        }
        self.connection.leader_responded();
        let head = stream::head(&info);
        self.sync_settings.refresh_if_changed(epoch, &info).await;
        *self.validated_epoch.lock() = head.clone().map(|_| epoch);
        let head = head?;
        // An announcement may get lost, and one of a stream that was replaced would wake every wait.
        self.announced.send_if_modified(|newest| {
            let is_wrong = head > *newest || (*newest == announced && head < announced);
            if is_wrong {
                *newest = head;
            }
            is_wrong
        });
        let known = Position(before.state.last_sequence);
        let same_log = info.created == before.created && head >= known;
        let mut current = self.info.lock();
        let newest = current.state.last_sequence;
        *current = info;
        *self.reported.lock() = Instant::now();
        if same_log {
            current.state.last_sequence = newest.max(head.0);
            return Ok(head);
        }
        *self.last.lock() = LastCommit::default();
        // Reported once; the follower then compares the log with its applied commits.
        Err(Fault::Diverged.error(format!(
            "stream {} went back from position {known} to {head}, or was recreated",
            self.address.stream
        )))
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.announced.subscribe()
    }

    fn durability(&self) -> Durability {
        let info = self.info.lock();
        self.sync_settings.durability(&info, *self.reported.lock())
    }
}

#[async_trait]
impl EventLog for NatsLog {
    /// A commit may be stored long after its append timed out: it can wait in the queue of the client, in a server or
    /// on the way to the leader. That is safe. It is stored only while `expected` is the last sequence. That ends with
    /// the next commit, and never recurs, because nothing is ever deleted. So either it becomes the commit at `expected
    /// + 1`, where a writer with an unclear outcome looks for it, or it is never stored. The same bytes may be sent
    /// again for the same position, because at most one copy is stored. `Nats-Msg-Id` is not used: JetStream checks
    /// duplicates before the expected sequence, and would acknowledge older content.
    ///
    /// The server compares only sequences, so the id of the expected commit is compared here, with the newest commit
    /// that this node has stored or read over its connection. After a reconnect, the commit is read again. One race
    /// remains: a stream that was deleted and restored with a different history of exactly the same length accepts the
    /// commit, if that happened after this node last read the head. The follower of a shared log reads it every second.
    ///
    /// Stores only the first record. If the second was sent without waiting for the reply to the first, and another node
    /// has stored the first commit, the sequence would be the expected one, and the second record would continue a history
    /// that it does not belong to.
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let record = &records[0];
        let epoch = self.connection.epoch();
        // Nothing has been sent yet, so a failure here has stored nothing.
        self.check_stream().await?;
        if !self.holds(expected).await.map_err(AppendError::NotStored)? {
            return Err(AppendError::Conflict);
        }
        let expected = expected.position;
        let (subject, mut headers) = self.append_headers(expected);
        headers.insert(COMMIT_ID, record.id.0.to_string());
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        loop {
            let (subject, headers, bytes) = (subject.clone(), headers.clone(), record.bytes.clone());
            match self.connection.request(subject, headers, bytes, RESPONSE_TIMEOUT).await {
                Ok(reply) => {
                    let position = acknowledgement::outcome(&self.address.stream, expected, &reply.payload)?;
                    let last_sequence = &mut self.info.lock().state.last_sequence;
                    *last_sequence = position.0.max(*last_sequence);
                    self.last.lock().record(Version::at(position, record.id), epoch);
                    announce(&self.announced, position);
                    return Ok(position);
                }
                // Sent again during an election: no server has received the message.
                Err(RequestFailure::NoResponders(_)) if Instant::now() < deadline => {
                    time::sleep(LEADER_DELAY).await;
                }
                Err(RequestFailure::NotSent(error) | RequestFailure::NoResponders(error)) => {
                    return Err(AppendError::NotStored(error));
                }
                Err(RequestFailure::NoResponse(error)) => return Err(AppendError::Unclear(error)),
            }
        }
    }

    /// The leader of a cluster checks its limits before it compares the sequence, so the result is exact. A single
    /// server compares the sequence first, so only a real commit shows whether it has room.
    async fn check_writable(&self) -> Result<(), LogError> {
        let (subject, headers) = self.append_headers(PROBE_SEQUENCE);
        let mut was_denied = false;
        let reply = loop {
            let headers = headers.clone();
            let denied = self.connection.denied(&subject);
            tokio::select! {
                biased;
                error = denied => if was_denied { return Err(error) },
                reply = self.connection.request(subject.clone(), headers, Bytes::new(), RESPONSE_TIMEOUT) => {
                    break reply.map_err(RequestFailure::into_error)?;
                }
            }
            // The error may be about an earlier commit.
            was_denied = true;
        };
        match acknowledgement::outcome(&self.address.stream, PROBE_SEQUENCE, &reply.payload) {
            Ok(_) | Err(AppendError::Conflict) => Ok(()),
            Err(AppendError::NotStored(error) | AppendError::Unclear(error) | AppendError::Closed(error)) => {
                Err(error)
            }
        }
    }
}

async fn connect(url: &str) -> Result<(Address, NatsConnection), LogError> {
    let address = Address::parse(url, &environment::of_this_process)?;
    let connection = NatsConnection::open(&address).await?;
    let (major, minor) = SERVER_MIN;
    if !connection.client.is_server_compatible(major, minor, 0) {
        let version = connection.client.server_info().version;
        let detail = format!("nats-server {version} is too old: petstore needs {major}.{minor} or newer");
        return Err(Fault::CannotOpen.error(detail));
    }
    Ok((address, connection))
}

impl fmt::Debug for NatsLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "NatsLog({})", self.address)
    }
}

async fn listen(
    connection: &NatsConnection,
    address: &Address,
    background: &mut JoinSet<()>,
) -> Result<watch::Sender<Position>, LogError> {
    let stored = connection.client.subscribe(stream::stored_subject(&address.stream)).await;
    let mut stored =
        stored.map_err(|error| Fault::Unreachable.error(format!("cannot subscribe to commits: {error}")))?;
    let announced = watch::Sender::new(Position::START);
    let received = announced.clone();
    background.spawn(async move {
        while let Some(message) = stored.next().await {
            if let Some(sequence) = reading::sequence(&message) {
                announce(&received, Position(sequence));
            }
        }
    });
    Ok(announced)
}

fn announce(announced: &watch::Sender<Position>, position: Position) {
    announced.send_if_modified(|announced| {
        let before = *announced;
        *announced = before.max(position);
        before < *announced
    });
}

#[cfg(test)]
mod tests {
    use application::log::contract;

    use super::*;

    fn version(position: u64) -> Version {
        Version::at(Position(position), contract::record(position).id)
    }

    #[test]
    fn only_the_newest_commit_of_the_connection_is_recognised() {
        let (older, newer) = (version(6), version(7));
        let mut last = LastCommit::default();
        last.record(newer, 0);
        last.record(older, 0);
        assert!(last.is(newer, 0));
        assert!(!last.is(version(7), 0), "a different commit at the same position");
        assert!(!last.is(newer, 1), "a new connection may lead to another log");
        last.record(older, 1);
        assert!(last.is(older, 1));
    }
}
