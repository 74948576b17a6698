//! A log in a stream of NATS JetStream: one message per commit, its sequence is the position.
//!
//! Reading order: this file (what callers see), `nats/stream.rs` (how the stream must be, and its head),
//! `nats/reading.rs` (records), `nats/last_commit.rs` (what an append is compared with), `nats/connection.rs` (what became of a request), `nats/durability.rs` and
//! `nats/monitoring.rs` (what an acknowledgement is worth), `nats/address.rs` (the URL).

mod address;
mod connection;
mod durability;
mod last_commit;
mod monitoring;
mod reading;
mod stream;

use std::{fmt, sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version,
};
use async_nats::{
    HeaderMap,
    header::NATS_EXPECTED_LAST_SEQUENCE,
    jetstream::{ErrorCode, publish::PublishAck, response::Response, stream::Info},
};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

use self::{
    address::Address,
    connection::{ANSWER_TIMEOUT, Connection, Failure, unreachable},
    durability::Syncing,
    last_commit::LastCommit,
};
use super::environment;

/// The oldest server whose replicas hand out records in batches.
const SERVER_MIN: (i64, i64) = (2, 11);
/// How long to trust in being told about news before looking for them.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait before sending a commit again that found no leader.
const LEADER_PAUSE: Duration = Duration::from_millis(100);
/// Room for the one header of a commit beside its bytes.
const HEADER_ROOM: usize = 128;
/// The largest commits of the writer need so much.
const PAYLOAD_MIN: usize = 768 * 1024;

/// A log that lives in a JetStream cluster and may be shared by many nodes.
pub struct NatsLog {
    address: Address,
    connection: Connection,
    /// What the leader last said about the stream.
    seen: Mutex<Info>,
    /// The newest commit that this node stored or read.
    last: Mutex<LastCommit>,
    syncing: Arc<Syncing>,
    /// Changes when something may have been stored. Told by others, so only a wake-up.
    news: watch::Receiver<()>,
    /// Listens for news and asks the monitoring; ends with the log.
    _background: JoinSet<()>,
}

impl NatsLog {
    /// Connects to one of the servers of a `nats://[user:password@]host:port[,host:port]/STREAM` URL and finds or
    /// makes the stream. Fails within seconds when nobody answers: that may pass, try again.
    ///
    /// A user without a password is a token, unless the password comes from `NATS_PASSWORD` or the option
    /// `password-file`. Other options: `creds` (a credentials file), `tls=required` or `tls=first`, `ca`, `cert`
    /// and `key` (PEM files), `replicas` (of a stream that has to be made), `monitor=host:port[,host:port]` (to
    /// check how the servers sync) and `sync=always` (to state it).
    pub async fn open(url: &str) -> Result<Self, LogError> {
        let (address, connection) = connect(url).await?;
        stream::ensure(&connection, &address).await?;
        Self::attach(address, connection).await
    }

    /// The same for tools that look into a log: a stream that is not there is not made.
    pub async fn open_existing(url: &str) -> Result<Self, LogError> {
        let (address, connection) = connect(url).await?;
        Self::attach(address, connection).await
    }

    async fn attach(address: Address, connection: Connection) -> Result<Self, LogError> {
        let seen = stream::ask_leader(&connection, &address).await?;
        stream::head(&seen)?;
        let syncing = Arc::new(Syncing::look_up(&address).await?);
        let mut background = JoinSet::new();
        let news = listen(&connection, &address, &mut background).await?;
        if syncing.is_monitored() {
            background.spawn(keep_asking(syncing.clone()));
        }
        Ok(Self {
            address,
            connection,
            seen: Mutex::new(seen),
            last: Mutex::default(),
            syncing,
            news,
            _background: background,
        })
    }

    /// The last position that is known to be stored.
    fn known(&self) -> Position {
        Position(self.seen.lock().state.last_sequence)
    }

    /// Takes an acknowledgement into account.
    fn acknowledged(&self, position: Position) {
        let mut seen = self.seen.lock();
        seen.state.last_sequence = seen.state.last_sequence.max(position.0);
    }

    /// Whether the commit at `expected.position` is the expected one. The leader is asked unless this node has stored or
    /// read that commit itself over the connection that it has now.
    async fn holds(&self, expected: Version) -> Result<bool, LogError> {
        if expected.position == Position::START {
            return Ok(expected.commit.is_none());
        }
        let losses = self.connection.losses();
        if self.last.lock().is(expected, losses) {
            return Ok(true);
        }
        let found = reading::from_leader(&self.connection, &self.address.stream, expected.position).await?;
        let mut last = self.last.lock();
        *last = LastCommit::default();
        if let Some(record) = found {
            last.read(&record, losses);
        }
        Ok(last.is(expected, losses))
    }

    /// What an answer to an append means.
    fn outcome(&self, expected: Position, answer: &[u8]) -> Result<Position, AppendError> {
        let error = match serde_json::from_slice::<Response<PublishAck>>(answer) {
            Ok(Response::Ok(ack))
                if ack.stream == self.address.stream && ack.sequence == expected.next().0 =>
            {
                self.acknowledged(expected.next());
                return Ok(expected.next());
            }
            Ok(Response::Ok(ack)) => {
                let detail = format!(
                    "the commit for position {} went to {} of stream {}: somebody else writes there",
                    expected.next(),
                    ack.sequence,
                    ack.stream
                );
                return Err(AppendError::Closed(LogError::new(Fault::Diverged, detail)));
            }
            Ok(Response::Err { error }) => error,
            Err(error) => {
                let detail = format!("the acknowledgement cannot be understood: {error}");
                return Err(AppendError::Unclear(unreachable(detail)));
            }
        };
        let refusal = |fault| AppendError::NotStored(LogError::new(fault, format!("NATS refused: {error}")));
        Err(match error.error_code() {
            ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
                AppendError::Conflict
            }
            // These are said before anything is proposed to the replicas.
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED => refusal(Fault::Full),
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => refusal(Fault::TooLarge),
            // Whatever else goes wrong on the leader may have gone well on the others.
            _ => AppendError::Unclear(LogError::new(Fault::WriteFailed, format!("NATS failed: {error}"))),
        })
    }
}

#[async_trait]
impl EventLog for NatsLog {
    /// A copy may be stored long after we gave up waiting: it sits in the queue of the client, in a server or on
    /// the way to the leader. It can do no harm. It is stored only if `expected` is the last sequence, a state
    /// that ends with the first commit after it and never returns, since nothing is ever deleted. So either it
    /// becomes the commit at `expected + 1`, where whoever is in doubt looks for it, or it never lands; and the same
    /// bytes may be sent again at the same place, since at most one copy finds the place free. There is no
    /// `Nats-Msg-Id`: the deduplication comes before the expectation and would acknowledge older content.
    ///
    /// The server compares sequences only, so the id of the expected commit is compared here, with the newest commit that
    /// this node stored or read over its connection; after a reconnect it is read again. What remains is a window: a
    /// stream that was deleted and restored with another history of exactly the same length takes the commit, if it was
    /// replaced after this node last looked at the head. On a shared log the follower looks at it every second.
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let losses = self.connection.losses();
        let most = self.connection.client.max_payload().saturating_sub(HEADER_ROOM);
        if record.bytes.len() > most {
            let detail =
                format!("a commit of {} bytes; the NATS server takes at most {most}", record.bytes.len());
            return Err(AppendError::NotStored(LogError::new(Fault::TooLarge, detail)));
        }
        // Nothing was sent yet, so whatever goes wrong here has stored nothing.
        if !self.holds(expected).await.map_err(AppendError::NotStored)? {
            return Err(AppendError::Conflict);
        }
        let expected = expected.position;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SEQUENCE, expected.0.to_string());
        let subject = stream::commits_subject(&self.address.stream);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let (subject, headers, bytes) = (subject.clone(), headers.clone(), record.bytes.clone());
            match self.connection.request(subject, headers, bytes, ANSWER_TIMEOUT).await {
                Ok(answer) => {
                    let position = self.outcome(expected, &answer.payload)?;
                    self.last.lock().stored(position, record.id, losses);
                    return Ok(position);
                }
                // A new leader makes itself known within a moment, and what nobody got may be sent again.
                Err(Failure::NoResponders(_)) if Instant::now() < deadline => {
                    time::sleep(LEADER_PAUSE).await;
                }
                Err(Failure::NotSent(error) | Failure::NoResponders(error)) => {
                    return Err(AppendError::NotStored(error));
                }
                Err(Failure::NoAnswer(error)) => return Err(AppendError::Unclear(error)),
            }
        }
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let losses = self.connection.losses();
        // Only the leader may say that there is nothing more.
        if after >= self.known() && self.head().await? <= after {
            return Ok(vec![]);
        }
        let stream = &self.address.stream;
        if bound.records > 1 {
            let mut found = reading::from_any_replica(&self.connection, stream, after, bound).await?;
            // A replica may have a commit a moment before the leader, who would then seem to have lost it.
            if found.last().is_some_and(|record| record.position > self.known()) {
                self.head().await?;
                let known = self.known();
                found.retain(|record| record.position <= known);
            }
            if let Some(newest) = found.last() {
                self.last.lock().read(newest, losses);
                return Ok(found);
            }
        }
        if let Some(record) = reading::from_leader(&self.connection, stream, after.next()).await? {
            self.last.lock().read(&record, losses);
            return Ok(vec![record]);
        }
        let head = self.head().await?;
        if head <= after {
            return Ok(vec![]);
        }
        let detail =
            format!("the commit at position {} is missing, but the log goes on to {head}", after.next());
        Err(LogError::new(Fault::Damaged, detail))
    }

    async fn head(&self) -> Result<Position, LogError> {
        // Answers may overtake each other, so what is compared is what was known before asking.
        let before = self.seen.lock().clone();
        let info = match stream::ask_leader(&self.connection, &self.address).await {
            Ok(info) => info,
            Err(error) => {
                if error.fault == Fault::Unreachable {
                    self.connection.leader_missing().await;
                }
                return Err(error);
            }
        };
        self.connection.leader_answered();
        let head = stream::head(&info)?;
        let known = Position(before.state.last_sequence);
        let same_log = info.created == before.created && head >= known;
        let mut seen = self.seen.lock();
        let newest = seen.state.last_sequence;
        *seen = info;
        if same_log {
            seen.state.last_sequence = newest.max(head.0);
            return Ok(head);
        }
        *self.last.lock() = LastCommit::default();
        // Said once, so that whoever follows the log compares it with what was read before.
        let detail =
            format!("stream {} went back from {known} to {head} or was made anew", self.address.stream);
        Err(LogError::new(Fault::Diverged, detail))
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        let deadline = Instant::now() + patience;
        let mut news = self.news.clone();
        loop {
            news.mark_unchanged();
            if self.head().await? > position || Instant::now() >= deadline {
                return Ok(());
            }
            // Running out of patience is as good an end as any: then the log is looked at.
            let _ = time::timeout_at(deadline.min(Instant::now() + POLL_INTERVAL), news.changed()).await;
        }
    }

    fn durability(&self) -> Durability {
        self.syncing.durability(&self.seen.lock())
    }
}

async fn connect(url: &str) -> Result<(Address, Connection), LogError> {
    let address = Address::parse(url, &environment::of_this_process)?;
    let connection = Connection::open(&address).await?;
    check_server(&connection)?;
    Ok((address, connection))
}

impl fmt::Debug for NatsLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("NatsLog").field(&self.address).finish()
    }
}

fn check_server(connection: &Connection) -> Result<(), LogError> {
    let (major, minor) = SERVER_MIN;
    let info = connection.client.server_info();
    if !connection.client.is_server_compatible(major, minor, 0) {
        let detail = format!("nats-server {} is too old: {major}.{minor} or newer is needed", info.version);
        return Err(LogError::new(Fault::CannotOpen, detail));
    }
    if info.max_payload < PAYLOAD_MIN {
        tracing::warn!(
            "the NATS server takes messages of at most {} bytes: commits above are refused, set max_payload to {PAYLOAD_MIN} or more",
            info.max_payload
        );
    }
    Ok(())
}

/// Hears of every commit that the leader stores.
async fn listen(
    connection: &Connection,
    address: &Address,
    background: &mut JoinSet<()>,
) -> Result<watch::Receiver<()>, LogError> {
    let stored = connection.client.subscribe(stream::stored_subject(&address.stream)).await;
    let mut stored = stored.map_err(|error| unreachable(format!("cannot listen for news: {error}")))?;
    let (heard, news) = watch::channel(());
    background.spawn(async move {
        while stored.next().await.is_some() {
            heard.send_replace(());
        }
    });
    Ok(news)
}

async fn keep_asking(syncing: Arc<Syncing>) {
    loop {
        time::sleep(durability::REFRESH_INTERVAL).await;
        syncing.refresh().await;
    }
}
