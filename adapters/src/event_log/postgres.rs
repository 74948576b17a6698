//! A log in PostgreSQL, one row per commit. Any number of nodes may share it.
//!
//! Reading order: this file (the public API, and reconnecting), `postgres/session.rs` (the two connections and the SQL
//! statements), `postgres/schema.rs` (the tables), `postgres/error_mapping.rs`, `postgres/durability.rs` (the promise of
//! the server), `postgres/settings.rs`, `postgres/passfile.rs` (from the URL to a connection).

mod durability;
mod error_mapping;
mod passfile;
mod schema;
mod session;
mod settings;

use std::{fmt, sync::Arc, time::Duration};

use application::{
    Backoff,
    ports::{
        AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record,
        StoredRecord, Version,
    },
};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex as SyncMutex, RwLock};
use tokio::{
    sync::{Mutex, Semaphore, watch},
    task,
    time::{self, Instant},
};

use self::{session::Session, settings::Target};
use super::{IfMissing, environment};

/// How long an append may take. Shorter than the time that the application gives a write, so that its client learns
/// the outcome.
const APPEND_TIMEOUT: Duration = Duration::from_millis(3_500);
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a batch of records may take, even over a slow network.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the files that the URL names may take to be read.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(2);
/// One task reads them at a time, so that a file system that hangs blocks one thread.
static SETTINGS_TURN: Semaphore = Semaphore::const_new(1);
/// The delay between attempts to connect. Until the next one, calls fail with the error of the last one.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// The delay before other servers are tried again, while the connected one lacks the newest commit.
const BEHIND_DELAY: Duration = Duration::from_secs(1);
const DURABILITY_AGE_MAX: Duration = Duration::from_secs(1);

/// A log in a PostgreSQL database. Reconnects automatically to the server that is the primary.
pub struct PostgresLog {
    url: String,
    link: Mutex<Link>,
    /// The last announced position. It may be too high after another server has become the primary.
    announced: watch::Sender<Position>,
    /// The newest commit that this node has read or appended: servers that hold it are preferred.
    newest: SyncMutex<Version>,
    /// The durability that the server reported, and when.
    durability: RwLock<(Durability, Instant)>,
}

/// The connection to the primary.
enum Link {
    Connected {
        session: Arc<Session>,
        /// When to look for another server, if this one lacks the newest commit.
        until: Option<Instant>,
    },
    Lost {
        error: LogError,
        try_again: Instant,
        failures: u32,
    },
}

impl PostgresLog {
    /// Connects to the primary among the servers of a `postgres://` URL, and creates the tables if they do not exist.
    ///
    /// The password may also come from `PGPASSWORD`, or from the password file named by `passfile` or `PGPASSFILE`, which is
    /// read again at every connection.
    /// [`Fault::Unreachable`] may be temporary: retry.
    pub fn open(url: &str) -> BoxFuture<'_, Result<Self, LogError>> {
        Box::pin(Self::connect_replicated(url, IfMissing::Create, Version::START))
    }

    /// Opens an existing log for reading it as it is: without creating tables, or waiting for standbys.
    pub fn open_existing(url: &str) -> BoxFuture<'_, Result<Self, LogError>> {
        Box::pin(Self::connect(url, IfMissing::Fail, Version::START))
    }

    /// Opens an existing log, preferably on a server that holds this commit. If none does and one of them does not
    /// respond, the error is [`Fault::Unreachable`], because that one may hold it. If all respond, the log opens, and the
    /// caller checks which commits it lacks.
    pub fn open_preferring(url: &str, newest: Version) -> BoxFuture<'_, Result<Self, LogError>> {
        Box::pin(Self::connect_replicated(url, IfMissing::Fail, newest))
    }

    /// The name of the log that a URL selects: its database and schema. `None` if the URL names no server.
    pub fn name_in(url: &str) -> Option<String> {
        let (_, rest) = url.split_once("://")?;
        (!rest.is_empty()).then(|| settings::log_name(url, &environment::of_this_process))
    }

    /// Parses a URL without connecting anywhere.
    #[cfg(feature = "fuzzing")]
    pub fn check_url(url: &str) -> Result<(), LogError> {
        settings::parse(url, &|_| None).map(drop)
    }

    /// Connects, and waits for the synchronous standbys: clients take what they read for durable.
    async fn connect_replicated(url: &str, if_missing: IfMissing, newest: Version) -> Result<Self, LogError> {
        let log = Self::connect(url, if_missing, newest).await?;
        log.session().await?.wait_for_standbys().await?;
        Ok(log)
    }

    async fn connect(url: &str, if_missing: IfMissing, newest: Version) -> Result<Self, LogError> {
        let announced = watch::Sender::default();
        let (session, errors) = Session::open(&servers(url).await?, if_missing, newest, &announced).await;
        let another_may_hold_it = errors.iter().any(|error| error.fault == Fault::Unreachable);
        // If no better server can be expected, use one that lacks the newest commit. The caller checks what is missing.
        let session = session.filter(|session| session.holds_newest || !another_may_hold_it);
        let session = session.ok_or_else(|| error_mapping::combined(errors))?;
        let durability = RwLock::new((session.durability().await?, Instant::now()));
        let link = Mutex::new(Link::Connected { session: Arc::new(session), until: None });
        Ok(Self { url: url.to_owned(), link, announced, newest: SyncMutex::new(newest), durability })
    }

    /// The open session, or a new one.
    async fn session(&self) -> Result<Arc<Session>, LogError> {
        let mut link = self.link.lock().await;
        let now = Instant::now();
        let failures = match &*link {
            Link::Connected { session, until }
                if session.is_open() && until.is_none_or(|until| now < until) =>
            {
                return Ok(session.clone());
            }
            Link::Lost { error, try_again, .. } if now < *try_again => return Err(error.clone()),
            Link::Connected { .. } => 1,
            Link::Lost { failures, .. } => failures.saturating_add(1),
        };
        match self.reconnect().await {
            Ok(session) => {
                let session = Arc::new(session);
                let until = (!session.holds_newest).then(|| Instant::now() + BEHIND_DELAY);
                *link = Link::Connected { session: session.clone(), until };
                Ok(session)
            }
            Err(error) => {
                let try_again = Instant::now() + RETRY.delay(failures);
                *link = Link::Lost { error: error.clone(), try_again, failures };
                Err(error)
            }
        }
    }

    async fn reconnect(&self) -> Result<Session, LogError> {
        // Missing tables are not recreated: a log that has vanished is not an empty log.
        let newest = *self.newest.lock();
        let servers = servers(&self.url).await?;
        let (session, errors) = Session::open(&servers, IfMissing::Fail, newest, &self.announced).await;
        let session = session.ok_or_else(|| error_mapping::combined(errors))?;
        let durability = session.durability().await?;
        *self.durability.write() = (durability, Instant::now());
        session.wait_for_standbys().await?;
        Ok(session)
    }

    /// Remembers this commit if it is newer than the newest one known.
    fn raise_newest(&self, version: Version) {
        let mut newest = self.newest.lock();
        if version.position > newest.position {
            *newest = version;
        }
    }

    /// Remembers the last of these records if they continue the known history: they include the newest known commit, or no
    /// commit is known yet.
    fn note_read(&self, records: &[StoredRecord]) {
        let newest = *self.newest.lock();
        if (newest == Version::START || records.iter().any(|record| record.version() == newest))
            && let Some(last) = records.last()
        {
            self.raise_newest(last.version());
        }
    }
}

/// Reads the settings of the servers, with the password file and the certificates as they are now: both may be replaced
/// while the service runs.
async fn servers(url: &str) -> Result<Vec<Target>, LogError> {
    let url = url.to_owned();
    let reading = async {
        let turn = SETTINGS_TURN.acquire().await;
        let read = move || (turn, settings::parse(&url, &environment::of_this_process)).1;
        task::spawn_blocking(read).await
    };
    match time::timeout(SETTINGS_TIMEOUT, reading).await {
        Ok(Ok(servers)) => servers,
        Ok(Err(_)) | Err(_) => Err(Fault::Unreachable
            .error("the password file or the certificates of PostgreSQL cannot be read in time")),
    }
}

#[async_trait]
impl LogSource for PostgresLog {
    async fn read(&self, after: Position, mut bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let session = self.session().await?;
        let mut records = loop {
            match session.in_time(READ_TIMEOUT, session.read(after, bound)).await {
                // The server fails the whole batch. The records before the damaged one are in a smaller batch.
                Err(error) if error.fault == Fault::Damaged && bound.records > 1 => {
                    session.in_time(READ_TIMEOUT, session.read_by_index()).await?;
                    bound.records /= 2;
                }
                read => break read?,
            }
        };
        let gap =
            records.iter().zip(after.0 + 1..).position(|(record, position)| record.position.0 != position);
        if gap == Some(0) {
            return Err(Fault::Damaged.error(format!(
                "PostgreSQL at {}: position {} is missing from the table petstore_commits, because rows were deleted",
                session.server,
                after.next()
            )));
        }
        records.truncate(gap.unwrap_or(usize::MAX));
        self.note_read(&records);
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let session = self.session().await?;
        let head = session.in_time(HEAD_TIMEOUT, session.head()).await?;
        // The settings of the server can change while it runs.
        if self.durability.read().1.elapsed() >= DURABILITY_AGE_MAX
            && let Ok(durability) = session.durability().await
        {
            *self.durability.write() = (durability, Instant::now());
        }
        Ok(head)
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.announced.subscribe()
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        let session = self.session().await?;
        let next = session.in_time(READ_TIMEOUT, session.read(damaged, ReadBound::ONE)).await?;
        Ok(next.first().map_or(damaged.next(), |record| record.position))
    }

    fn durability(&self) -> Durability {
        self.durability.read().0.clone()
    }
}

#[async_trait]
impl EventLog for PostgresLog {
    /// Stores all records with one statement, or none.
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        // Nothing has been sent yet, so a failure here has stored nothing.
        let session = self.session().await.map_err(AppendError::NotStored)?;
        let reply = session.reply_within(APPEND_TIMEOUT, session.append(expected, records)).await;
        match reply.map_err(AppendError::Unclear)? {
            Ok(Some(_)) if session.has_warned() => {
                session.disconnect();
                let what = "stored a commit with a warning; its standbys may not have it";
                Err(AppendError::Unclear(error_mapping::unreachable_error(&session.server, what)))
            }
            Ok(Some(last)) => {
                self.raise_newest(last);
                Ok(last.position)
            }
            Ok(None) => Err(AppendError::Conflict),
            Err(error) => {
                // A read has ended the session because the server did not reply: report that, not the closed connection.
                if let Some(cause) = session.no_reply.get().filter(|_| error.is_closed()) {
                    return Err(AppendError::Unclear(cause.clone()));
                }
                Err(error_mapping::append_error(&session.server, &error))
            }
        }
    }

    async fn check_writable(&self) -> Result<(), LogError> {
        let session = self.session().await?;
        let probed = session.reply_within(APPEND_TIMEOUT, session.check_writable()).await?;
        probed.map_err(|error| error_mapping::probe_error(&session.server, &error))
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PostgresLog").finish_non_exhaustive()
    }
}
