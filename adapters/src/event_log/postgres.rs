//! A log in PostgreSQL, one row per commit. Any number of nodes may share it.
//!
//! Reading order: this file (the public API), `postgres/session.rs` (the two connections and the SQL statements),
//! `postgres/link.rs` (reconnecting), `postgres/schema.rs` (the tables), `postgres/error_mapping.rs`,
//! `postgres/durability.rs` (the promise of the server), `postgres/settings.rs`, `postgres/passfile.rs`,
//! `postgres/tls.rs` (from the URL to a connection).

mod durability;
mod error_mapping;
mod link;
mod passfile;
mod schema;
mod session;
mod settings;
mod tls;

use std::{fmt, time::Duration};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record, StoredRecord,
    Version,
};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::{self, Instant};

use super::{IfMissing, check_size, environment};
use link::Link;

/// How long an append may take. Shorter than the time that the application gives a write, so that its client learns
/// the outcome.
const APPEND_TIMEOUT: Duration = Duration::from_millis(3_500);
/// The largest record. PostgreSQL stores up to 1 GiB in a column, but not within `APPEND_TIMEOUT`.
const RECORD_MAX: usize = 32 * 1024 * 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a batch of records may take, even over a slow network.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// The polling interval, in case a notification gets lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A log in a PostgreSQL database. Reconnects automatically to the server that is the primary.
pub struct PostgresLog {
    link: Link,
}

impl PostgresLog {
    /// Connects to the primary among the servers of a `postgres://` URL, and creates the tables if they do not exist.
    ///
    /// The password may also come from `PGPASSWORD`, or from the password file named by `passfile` or `PGPASSFILE`.
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
        log.link.session().await?.wait_for_standbys().await?;
        Ok(log)
    }

    async fn connect(url: &str, if_missing: IfMissing, newest: Version) -> Result<Self, LogError> {
        let targets = settings::parse(url, &environment::of_this_process)?;
        Ok(Self { link: Link::open(targets, if_missing, newest).await? })
    }
}

#[async_trait]
impl LogSource for PostgresLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let session = self.link.session().await?;
        let records = session.in_time(READ_TIMEOUT, session.read(after, bound)).await?;
        self.link.note_read(&records);
        for (record, position) in records.iter().zip(after.0 + 1..) {
            if record.position != Position(position) {
                return Err(Fault::Damaged.error(format!(
                    "PostgreSQL at {}: position {position} is missing from the table {}, because rows were deleted",
                    session.server,
                    schema::COMMITS
                )));
            }
        }
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let session = self.link.session().await?;
        let head = session.in_time(HEAD_TIMEOUT, session.head()).await?;
        self.link.refresh_durability(&session).await;
        Ok(head)
    }

    async fn wait_for(&self, position: Position, timeout: Duration) -> Result<(), LogError> {
        let deadline = Instant::now() + timeout;
        loop {
            let session = self.link.session().await?;
            let next_look = deadline.min(Instant::now() + POLL_INTERVAL);
            let notified = time::timeout_at(next_look, session.announced_beyond(position)).await.is_ok();
            if notified || Instant::now() >= deadline {
                return Ok(());
            }
            // Also return for a shorter log: a new primary may lack the last commits.
            if session.in_time(HEAD_TIMEOUT, session.head()).await? != position {
                return Ok(());
            }
        }
    }

    fn durability(&self) -> Durability {
        self.link.durability()
    }
}

#[async_trait]
impl EventLog for PostgresLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        check_size(record, RECORD_MAX)?;
        // Nothing has been sent yet, so a failure here has stored nothing.
        let session = self.link.session().await.map_err(AppendError::NotStored)?;
        match time::timeout(APPEND_TIMEOUT, session.append(expected, record)).await {
            Ok(Ok(Some(_))) if session.has_warned() => {
                session.disconnect();
                let what = "stored a commit with a warning; its standbys may not have it";
                Err(AppendError::Unclear(error_mapping::unreachable_error(&session.server, what)))
            }
            Ok(Ok(Some(position))) => {
                self.link.raise_newest(Version::at(position, record.id));
                Ok(position)
            }
            Ok(Ok(None)) => Err(AppendError::Conflict),
            Ok(Err(error)) => {
                // A read has ended the session because the server did not reply: report that, not the closed connection.
                if let Some(cause) = session.no_reply.get().filter(|_| error.is_closed()) {
                    return Err(AppendError::Unclear(cause.clone()));
                }
                let outcome = error_mapping::append_error(&session.server, &error);
                if error_mapping::is_read_only(&error) {
                    // This server is no longer the primary; another one may be.
                    session.disconnect();
                }
                Err(outcome)
            }
            Err(_) => {
                session.disconnect();
                Err(AppendError::Unclear(error_mapping::no_reply(&session.server, APPEND_TIMEOUT)))
            }
        }
    }

    async fn check_writable(&self) -> Result<(), LogError> {
        let session = self.link.session().await?;
        let Ok(probed) = time::timeout(APPEND_TIMEOUT, session.check_writable()).await else {
            session.disconnect();
            return Err(error_mapping::no_reply(&session.server, APPEND_TIMEOUT));
        };
        probed.map_err(|error| {
            if error_mapping::is_read_only(&error) {
                // This server is no longer the primary; another one may be.
                session.disconnect();
            }
            error_mapping::probe_error(&session.server, &error)
        })
    }

    fn record_limit(&self) -> usize {
        RECORD_MAX
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PostgresLog").finish_non_exhaustive()
    }
}
