//! A log in PostgreSQL, one row per commit, which any number of nodes may share.
//!
//! Reading order: this file (what callers see), `postgres/session.rs` (the two connections and the statements),
//! `postgres/link.rs` (how a lost server is found again), `postgres/schema.rs` (the tables),
//! `postgres/error_mapping.rs` (what an error means), `postgres/durability.rs` (what the server promises),
//! `postgres/settings.rs`, `postgres/passfile.rs`, `postgres/tls.rs` (how the URL becomes a connection).

mod durability;
mod error_mapping;
mod link;
mod passfile;
mod schema;
mod session;
mod settings;
mod tls;

use std::{fmt, sync::Arc, time::Duration};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version,
};
use async_trait::async_trait;
use tokio::time::{self, Instant};

use super::environment;
use link::Link;
use schema::Tables;
use session::Session;
use settings::Settings;

/// How long an append may take. Less than a caller of the store waits, so that it hears what became of it.
const APPEND_PATIENCE: Duration = Duration::from_millis(3_500);
/// How long the server may take to tell the head: as soon as it is late, it is out of sight.
const HEAD_PATIENCE: Duration = Duration::from_secs(2);
/// How long a batch of records may take, over a slow line too.
const READ_PATIENCE: Duration = Duration::from_secs(15);
/// How often to look for news in case a notification gets lost.
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// A log in a PostgreSQL database. Finds its server again by itself, wherever the primary is.
pub struct PostgresLog {
    link: Link,
}

impl PostgresLog {
    /// Connects to the primary among the servers of a `postgres://` URL, and makes the tables if there are none.
    ///
    /// The password may also come from `PGPASSWORD`, or from the password file that `passfile` or `PGPASSFILE`
    /// name. An error of the kind [`Fault::Unreachable`] may pass: try again.
    pub async fn open(url: &str) -> Result<Self, LogError> {
        Self::connect(url, Tables::OrCreate).await
    }

    /// The same for tools that look into a log: makes no tables.
    pub async fn open_existing(url: &str) -> Result<Self, LogError> {
        Self::connect(url, Tables::Existing).await
    }

    async fn connect(url: &str, tables: Tables) -> Result<Self, LogError> {
        let settings = Settings::parse(url, &environment::of_this_process)?;
        Ok(Self { link: Link::open(settings, tables).await? })
    }
}

#[async_trait]
impl EventLog for PostgresLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        // Nothing was sent yet, so whatever goes wrong here has stored nothing.
        let session = self.link.session().await.map_err(AppendError::NotStored)?;
        match time::timeout(APPEND_PATIENCE, session.append(expected, record)).await {
            Ok(Ok(Some(_))) if session.has_warned() => {
                session.hang_up();
                let detail = format!(
                    "PostgreSQL at {} stored a commit and warned: its standbys may not have it",
                    session.server()
                );
                Err(AppendError::Unclear(LogError::new(Fault::Unreachable, detail)))
            }
            Ok(Ok(Some(position))) => Ok(position),
            Ok(Ok(None)) => Err(AppendError::Conflict),
            Ok(Err(error)) => {
                let outcome = error_mapping::append_error(session.server(), &error);
                if error_mapping::is_read_only(&error) {
                    // It was the primary once; another server may be by now.
                    session.hang_up();
                }
                Err(outcome)
            }
            Err(_) => {
                session.hang_up();
                Err(AppendError::Unclear(self.late("storing a commit")))
            }
        }
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let session = self.link.session().await?;
        let records = self.ask(&session, READ_PATIENCE, session.read(after, bound)).await?;
        for (record, position) in records.iter().zip(after.0 + 1..) {
            if record.position != Position(position) {
                let detail = format!(
                    "in PostgreSQL at {} position {position} is missing from the table {}: rows were deleted; \
                     restore the database from a backup",
                    session.server(),
                    schema::COMMITS
                );
                return Err(LogError::new(Fault::Damaged, detail));
            }
        }
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let session = self.link.session().await?;
        let head = self.ask(&session, HEAD_PATIENCE, session.head()).await?;
        self.link.refresh_durability(&session).await;
        Ok(head)
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        let deadline = Instant::now() + patience;
        loop {
            let session = self.link.session().await?;
            let next_look = deadline.min(Instant::now() + POLL_PAUSE);
            // Notifications are only a hint; who gets none looks for himself.
            let told = time::timeout_at(next_look, session.news_beyond(position)).await.is_ok();
            if told || Instant::now() >= deadline {
                return Ok(());
            }
            // A shorter log is worth a look, too: another server may have taken over, without the last commits.
            if self.ask(&session, HEAD_PATIENCE, session.head()).await? != position {
                return Ok(());
            }
        }
    }

    fn durability(&self) -> Durability {
        self.link.durability()
    }
}

impl PostgresLog {
    /// Waits for an answer, but not for ever: a server that does not answer is given up.
    async fn ask<T>(
        &self,
        session: &Arc<Session>,
        patience: Duration,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, LogError> {
        let Ok(answer) = time::timeout(patience, answer).await else {
            session.hang_up();
            return Err(self.late("answering"));
        };
        answer.map_err(|error| error_mapping::query_error(session.server(), &error))
    }

    fn late(&self, doing: &str) -> LogError {
        let detail = format!("PostgreSQL at {} takes too long for {doing}", self.link.servers());
        LogError::new(Fault::Unreachable, detail)
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PostgresLog").field("servers", &self.link.servers()).finish_non_exhaustive()
    }
}
