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

use std::{sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record, StoredRecord,
    Version,
};
use async_trait::async_trait;
use parking_lot::{Mutex as SyncMutex, RwLock};
use tokio::{
    sync::{Mutex, Semaphore, watch},
    task,
    time::{self, Instant},
};

use self::{session::Session, settings::Target};
use super::variable;

/// How long the files that the URL names may take to be read.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(2);
/// One task reads them at a time, so that a file system that hangs blocks one thread.
static SETTINGS_TURN: Semaphore = Semaphore::const_new(1);
/// The delay before the next attempt to connect. Until then, calls fail with the error of the last attempt, or use the
/// server that was found although it lacks the newest commit.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A log in a PostgreSQL database. Reconnects automatically to the server that is the primary.
pub struct PostgresLog {
    url: String,
    link: Mutex<Link>,
    /// The last announced position. It may be too high after another server has become the primary.
    announced: watch::Sender<Position>,
    /// The newest commit that this node has read or appended: servers that hold it are preferred.
    newest: SyncMutex<Version>,
    /// As last reported by the server.
    durability: RwLock<Durability>,
}

/// The connection to the primary, or why there is none.
struct Link {
    session: Result<Arc<Session>, LogError>,
    /// When to connect again, after a failure or because this server lacks the newest commit.
    retry: Option<Instant>,
}

impl PostgresLog {
    /// Connects to the primary among the servers of a `postgres://` URL. Without a known commit, the tables are created if
    /// they do not exist. With one, nothing is created, and a server that holds this commit is preferred. If none does and
    /// one of them does not respond, the error is [`Fault::Unreachable`], because that one may hold it. If all respond, the
    /// log opens, and the caller checks which commits it lacks.
    ///
    /// The password may also come from `PGPASSWORD`, or from the password file named by `passfile` or `PGPASSFILE`, which is
    /// read again at every connection.
    /// [`Fault::Unreachable`] may be temporary: retry.
    pub async fn open(url: &str, known: Option<Version>) -> Result<Self, LogError> {
        let log = Self::connect(url, known).await?;
        // Clients take what they read for durable.
        log.session().await?.wait_for_standbys().await?;
        Ok(log)
    }

    /// Opens an existing log for reading it as it is: without creating tables, or waiting for standbys.
    pub async fn open_existing(url: &str) -> Result<Self, LogError> {
        Self::connect(url, Some(Version::START)).await
    }

    /// The name of the log that a URL selects: its database and schema. `None` if the URL names no server.
    pub fn name_in(url: &str) -> Option<String> {
        let (_, rest) = url.split_once("://")?;
        (!rest.is_empty()).then(|| settings::log_name(url, &variable))
    }

    /// Parses a URL without connecting anywhere.
    #[cfg(feature = "fuzzing")]
    pub fn check_url(url: &str) -> Result<(), LogError> {
        settings::parse(url, &|_| None).map(drop)
    }

    async fn connect(url: &str, known: Option<Version>) -> Result<Self, LogError> {
        let announced = watch::Sender::default();
        let (session, errors) = Session::open(&servers(url).await?, known, &announced).await;
        let another_may_hold_it = errors.iter().any(|error| error.fault == Fault::Unreachable);
        // If no better server can be expected, use one that lacks the newest commit. The caller checks what is missing.
        let session = session.filter(|session| session.holds_newest || !another_may_hold_it);
        let session = session.ok_or_else(|| error_mapping::combined(errors))?;
        let durability = RwLock::new(session.durability().await?);
        let link = Mutex::new(Link { session: Ok(Arc::new(session)), retry: None });
        Ok(Self {
            url: url.to_owned(),
            link,
            announced,
            newest: known.unwrap_or_default().into(),
            durability,
        })
    }

    /// The open session, or a new one.
    async fn session(&self) -> Result<Arc<Session>, LogError> {
        let mut link = self.link.lock().await;
        let is_broken = link.session.as_ref().is_ok_and(|session| !session.is_open());
        if !is_broken && link.retry.is_none_or(|retry| Instant::now() < retry) {
            return link.session.clone();
        }
        let session = self.reconnect().await.map(Arc::new);
        let is_found = session.as_ref().is_ok_and(|session| session.holds_newest);
        let retry = (!is_found).then(|| Instant::now() + RETRY_DELAY);
        *link = Link { session: session.clone(), retry };
        session
    }

    async fn reconnect(&self) -> Result<Session, LogError> {
        // Missing tables are not recreated: a log that has vanished is not an empty log.
        let newest = *self.newest.lock();
        let servers = servers(&self.url).await?;
        let (session, errors) = Session::open(&servers, Some(newest), &self.announced).await;
        let session = session.ok_or_else(|| error_mapping::combined(errors))?;
        let durability = session.durability().await?;
        *self.durability.write() = durability;
        session.wait_for_standbys().await?;
        Ok(session)
    }

    /// Remembers the last of these records if they continue the known history: they follow the newest known commit on a
    /// server that held it, or include it.
    fn note_read(&self, session: &Session, after: Position, records: &[StoredRecord]) {
        let mut newest = self.newest.lock();
        let follow = session.holds_newest && after == newest.position;
        if (follow || records.iter().any(|record| record.version() == *newest))
            && let Some(last) = records.last()
        {
            *newest = last.version();
        }
    }
}

/// Reads the settings of the servers, with the password file and the certificates as they are now: both may be replaced
/// while the service runs.
async fn servers(url: &str) -> Result<Vec<Target>, LogError> {
    let url = url.to_owned();
    let reading = async {
        let turn = SETTINGS_TURN.acquire().await;
        let read = move || (turn, settings::parse(&url, &variable)).1;
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
            match session.read(after, bound).await {
                // The server fails the whole batch. The records before the damaged one are in a smaller batch.
                Err(error) if error.fault == Fault::Damaged && bound.records > 1 => {
                    session.read_by_index().await?;
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
        self.note_read(&session, after, &records);
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let session = self.session().await?;
        let head = session.head().await?;
        // The settings of the server can change while it runs.
        if let Ok(durability) = session.durability().await {
            *self.durability.write() = durability;
        }
        Ok(head)
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.announced.subscribe()
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        let session = self.session().await?;
        let next = session.read(damaged, ReadBound::ONE).await?;
        Ok(next.first().map_or(damaged.next(), |record| record.position))
    }

    fn durability(&self) -> Durability {
        self.durability.read().clone()
    }
}

#[async_trait]
impl EventLog for PostgresLog {
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        // Nothing has been sent yet, so a failure here has stored nothing.
        let session = self.session().await.map_err(AppendError::NotStored)?;
        let last = session.append(expected, records).await?;
        let mut newest = self.newest.lock();
        if last.position > newest.position {
            *newest = last;
        }
        Ok(last.position)
    }

    async fn check_writable(&self) -> Result<(), LogError> {
        self.session().await?.check_writable().await
    }
}
