//! Two connections to one server, and the SQL statements. One connection only appends, so that nothing delays a commit;
//! the other reads and listens. Both end together.

use std::{
    future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use application::ports::{
    AppendError, CommitId, Durability, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version,
};
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Error, NoTls, Statement,
    types::{ToSql, Type},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    durability,
    error_mapping::{self, APPEND_LIMIT},
    schema,
    settings::Target,
};
use crate::event_log::announced;

/// The statement timeout of a read on the server. Like [`APPEND_LIMIT`], a little shorter than that of the client, so that no
/// statement runs after the client has given up.
const READ_LIMIT: Duration = Duration::from_secs(14);
/// How long an append may take. Shorter than the time that the application gives a write, so that its client learns
/// the outcome.
const APPEND_TIMEOUT: Duration = Duration::from_millis(3_500);
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a batch of records may take, even over a slow network.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a server may take to report its settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the synchronous standbys may take to catch up.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(4);

/// Stores all records, or none. The primary key assigns positions; the values of a sequence would become visible out of
/// order. The condition prevents gaps, so a reader that sees a row sees all rows before it. It also compares the id of
/// the previous commit, so that no commit is stored on a different history than the one it was based on.
///
/// The rest is stored only if the first record is: after a conflict with the first one, the position of the second may
/// be free. It cannot conflict itself, because the first record is visible to no other session yet.
const APPEND: &str = "\
    WITH given AS (\
        SELECT $1 + number AS position, id, bytes \
        FROM unnest($2, $3) WITH ORDINALITY AS records (id, bytes, number)), \
    first AS (\
        INSERT INTO petstore_commits (position, id, bytes) \
        SELECT position, id, bytes FROM given WHERE position = $1 + 1 AND (($1 = 0 AND $5 IS NULL) \
            OR EXISTS (SELECT 1 FROM petstore_commits WHERE position = $1 AND id = $5)) \
        ON CONFLICT (position) DO NOTHING RETURNING position), \
    rest AS (\
        INSERT INTO petstore_commits (position, id, bytes) \
        SELECT given.position, given.id, given.bytes FROM given, first WHERE given.position > first.position \
        RETURNING position) \
    SELECT pg_notify($4, max(position)::text) FROM (SELECT * FROM first UNION ALL SELECT * FROM rest) AS stored \
    HAVING count(*) > 0";

/// Selects the rows by their sizes before it reads any bytes. Reads no row after the limit, which may be damaged.
const READ: &str = "\
    SELECT position, bytes, id FROM (\
        SELECT position, bytes, id, \
            sum(octet_length(bytes)) OVER (\
                ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before \
        FROM petstore_commits WHERE position > $1 ORDER BY position LIMIT $2) AS batch \
    WHERE coalesce(bytes_before, 0) < $3 ORDER BY position";

/// Inserts a row like an append, at a position that no commit reaches, and rolls back.
const PROBE: &str = "\
    BEGIN; \
    INSERT INTO petstore_commits (position, id, bytes) VALUES (9223372036854775807, gen_random_uuid(), ''); \
    ROLLBACK";

/// A transaction without changes: its commit waits until the standbys have everything before it.
const EMPTY_TRANSACTION: &str = "SELECT pg_logical_emit_message(true, 'petstore', '')";
const HOLDS: &str = "SELECT EXISTS (SELECT 1 FROM petstore_commits WHERE position = $1 AND id = $2)";
const HEAD: &str = "SELECT coalesce(max(position), 0) FROM petstore_commits";

/// The channel on which nodes notify each other of commits. Its name holds the oid of the table, so that stores in
/// different schemas use different channels.
const CHANNEL: &str = "SELECT 'petstore_' || 'petstore_commits'::regclass::oid";

/// An open session with one server.
pub(super) struct Session {
    pub(super) server: String,
    /// Whether the server held the newest commit that this node had read or appended.
    pub(super) holds_newest: bool,
    appending: Client,
    append: Statement,
    channel: String,
    reading: Client,
    read: Statement,
    head: Statement,
    announced: watch::Sender<Position>,
    /// Whether the server has sent a warning on the append connection. It does so after a commit that did not wait for
    /// the standbys.
    warned: Arc<AtomicBool>,
    /// The tasks that drive the connections, which end with them.
    drivers: [AbortOnDropHandle<()>; 2],
    /// The error with which this node ended the session.
    ended: OnceLock<LogError>,
}

impl Session {
    /// Connects to the first writable server that holds the known commit, or else to the first writable one. Also returns
    /// the errors of the other servers. Creates missing tables if no commit is known.
    pub(super) async fn open(
        targets: &[Target],
        known: Option<Version>,
        announced: &watch::Sender<Position>,
    ) -> (Option<Self>, Vec<LogError>) {
        let (mut older, mut errors) = (None, Vec::new());
        for target in targets {
            let opening = Self::open_at(target, known, announced);
            match time::timeout(target.connect_timeout, opening).await {
                Ok(Ok(session)) if session.holds_newest => return (Some(session), vec![]),
                Ok(Ok(session)) => {
                    errors.push(Fault::AnotherLog.error(format!(
                        "PostgreSQL at {} lacks the commit at position {} that this node has applied",
                        target.server,
                        known.unwrap_or_default().position
                    )));
                    older.get_or_insert(session);
                }
                Ok(Err(error)) => errors.push(error),
                Err(_) => errors.push(error_mapping::no_reply(&target.server, target.connect_timeout)),
            }
        }
        (older, errors)
    }

    async fn open_at(
        target: &Target,
        known: Option<Version>,
        announced: &watch::Sender<Position>,
    ) -> Result<Self, LogError> {
        let warned = Arc::<AtomicBool>::default();
        let ((appending, append_driver), (reading, read_driver)) = tokio::try_join!(
            connect(target, APPEND_LIMIT, announced.clone(), warned.clone()),
            connect(target, READ_LIMIT, announced.clone(), Arc::default())
        )?;
        let failed = |error: Error| error_mapping::query_error(&target.server, &error);
        let (first, second) =
            tokio::try_join!(server_start(&appending), server_start(&reading)).map_err(failed)?;
        if first != second {
            return Err(Fault::Unreachable.error(format!(
                "two connections to {} reached two PostgreSQL servers; name each server in the URL",
                target.server
            )));
        }
        schema::ensure(&appending, &target.server, known).await?;
        let channel = appending.query_one(CHANNEL, &[]).await;
        let channel: String = channel.and_then(|row| row.try_get(0)).map_err(failed)?;
        reading.batch_execute(&format!("LISTEN {channel}")).await.map_err(failed)?;
        let types = [Type::INT8, Type::UUID_ARRAY, Type::BYTEA_ARRAY, Type::TEXT, Type::UUID];
        let mut session = Self {
            server: target.server.clone(),
            holds_newest: true,
            append: appending.prepare_typed(APPEND, &types).await.map_err(failed)?,
            channel,
            read: reading.prepare_typed(READ, &[Type::INT8; 3]).await.map_err(failed)?,
            head: reading.prepare(HEAD).await.map_err(failed)?,
            appending,
            reading,
            announced: announced.clone(),
            warned,
            drivers: [append_driver, read_driver],
            ended: OnceLock::new(),
        };
        // Listen first: every commit after this head is announced.
        session.head().await?;
        if let Some(Version { position: Position(position), commit: Some(commit) }) = known
            && let Ok(position) = i64::try_from(position)
        {
            let holds = session.reading.query_one(HOLDS, &[&position, &commit.0]).await;
            session.holds_newest = holds.and_then(|row| row.try_get(0)).map_err(failed)?;
        }
        Ok(session)
    }

    /// Stores all records after `expected` with one statement, or none. Returns the last of them.
    pub(super) async fn append(&self, expected: Version, records: &[Record]) -> Result<Version, AppendError> {
        let Ok(position) = i64::try_from(expected.position.0) else { return Err(AppendError::Conflict) };
        let ids: Vec<_> = records.iter().map(|record| record.id.0).collect();
        let bytes: Vec<_> = records.iter().map(|record| &*record.bytes).collect();
        let before = expected.commit.map(|commit| commit.0);
        self.warned.store(false, Ordering::Relaxed);
        let parameters: [&(dyn ToSql + Sync); 5] = [&position, &ids, &bytes, &self.channel, &before];
        let storing = self.appending.query_opt(&self.append, &parameters);
        match self.reply_within(APPEND_TIMEOUT, storing).await.map_err(AppendError::Unclear)? {
            Ok(None) => Err(AppendError::Conflict),
            Ok(Some(_)) if self.warned.load(Ordering::Relaxed) => {
                let what = "stored a commit with a warning; its standbys may not have it";
                Err(AppendError::Unclear(self.end(error_mapping::unreachable_error(&self.server, what))))
            }
            Ok(Some(_)) => {
                let last = records.iter().fold(expected, |version, record| version.then(record.id));
                announced::raise(&self.announced, last.position);
                Ok(last)
            }
            // This node has ended the session: report why, not the closed connection.
            Err(error) => Err(match self.ended.get().filter(|_| error.is_closed()) {
                Some(cause) => AppendError::Unclear(cause.clone()),
                None => error_mapping::append_error(&self.server, &error),
            }),
        }
    }

    pub(super) async fn check_writable(&self) -> Result<(), LogError> {
        let probing = async {
            let probed = self.appending.batch_execute(PROBE).await;
            if probed.is_err() {
                // The transaction is still open. If it cannot be rolled back, the connection is unusable.
                self.appending.batch_execute("ROLLBACK").await?;
            }
            probed
        };
        let probed = self.reply_within(APPEND_TIMEOUT, probing).await?;
        probed.map_err(|error| error_mapping::probe_error(&self.server, &error))
    }

    /// Waits until the synchronous standbys have everything that this server has. After a broken connection or a
    /// restart, the server may hold commits that did not wait for the standbys, and readers would take them for
    /// durable.
    pub(super) async fn wait_for_standbys(&self) -> Result<(), LogError> {
        self.warned.store(false, Ordering::Relaxed);
        let waiting = self.appending.query_one(EMPTY_TRANSACTION, &[]);
        let Ok(waited) = time::timeout(STANDBY_TIMEOUT, waiting).await else {
            let what = "is still waiting for its synchronous standbys; see pg_stat_replication";
            return Err(self.end(error_mapping::unreachable_error(&self.server, what)));
        };
        waited.map_err(|error| error_mapping::query_error(&self.server, &error))?;
        if self.warned.load(Ordering::Relaxed) {
            let what = "has stopped waiting for its synchronous standbys";
            return Err(error_mapping::unreachable_error(&self.server, what));
        }
        Ok(())
    }

    pub(super) async fn read(
        &self,
        after: Position,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let Ok(after) = i64::try_from(after.0) else { return Ok(vec![]) };
        let [records, bytes] =
            [bound.records, bound.bytes.max(1)].map(|most| i64::try_from(most).unwrap_or(i64::MAX));
        self.in_time(READ_TIMEOUT, async {
            let rows = self.reading.query(&self.read, &[&after, &records, &bytes]).await?;
            let records = rows.iter().map(|row| {
                let bytes: &[u8] = row.try_get(1)?;
                Ok(StoredRecord {
                    position: position(row.try_get(0)?),
                    id: Some(CommitId(row.try_get(2)?)),
                    bytes: Bytes::copy_from_slice(bytes),
                })
            });
            records.collect()
        })
        .await
    }

    /// Makes the server read rows through the index only, so that it does not read the damaged pages of other rows.
    /// Compilation is off because the disabled scans have such high costs that the server would compile every query.
    pub(super) async fn read_by_index(&self) -> Result<(), LogError> {
        let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; DISCARD PLANS";
        self.in_time(READ_TIMEOUT, self.reading.batch_execute(settings)).await
    }

    pub(super) async fn head(&self) -> Result<Position, LogError> {
        let before = *self.announced.borrow();
        let reading = async { self.reading.query_one(&self.head, &[]).await?.try_get(0) };
        let head = position(self.in_time(HEAD_TIMEOUT, reading).await?);
        announced::confirm(&self.announced, before, head);
        Ok(head)
    }

    pub(super) fn is_open(&self) -> bool {
        self.ended.get().is_none() && !self.appending.is_closed() && !self.reading.is_closed()
    }

    /// Ends the session at once, and returns why it has ended. The server may still complete its current statement.
    fn end(&self, cause: LogError) -> LogError {
        self.drivers.iter().for_each(AbortOnDropHandle::abort);
        self.ended.get_or_init(|| cause).clone()
    }

    /// Awaits a reply. Ends the session with a server that does not send it in time, or is no longer the primary.
    async fn reply_within<T>(
        &self,
        timeout: Duration,
        reply: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, LogError> {
        let Ok(reply) = time::timeout(timeout, reply).await else {
            return Err(self.end(error_mapping::no_reply(&self.server, timeout)));
        };
        if let Err(error) = &reply
            && error_mapping::is_read_only(error)
        {
            self.end(error_mapping::probe_error(&self.server, error));
        }
        Ok(reply)
    }

    /// Awaits the reply to a statement other than an append.
    async fn in_time<T>(
        &self,
        timeout: Duration,
        reply: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, LogError> {
        let reply = self.reply_within(timeout, reply).await?;
        reply.map_err(|error| error_mapping::query_error(&self.server, &error))
    }

    pub(super) async fn durability(&self) -> Result<Durability, LogError> {
        self.in_time(SETTINGS_TIMEOUT, durability::look_up(&self.reading)).await
    }
}

async fn connect(
    target: &Target,
    limit: Duration,
    announced: watch::Sender<Position>,
    warned: Arc<AtomicBool>,
) -> Result<(Client, AbortOnDropHandle<()>), LogError> {
    let failed = |error: Error| error_mapping::connect_error(&target.server, &error);
    let (client, driver) = match &target.tls {
        None => {
            let (client, connection) = target.config.connect(NoTls).await.map_err(failed)?;
            (client, tokio::spawn(drive(connection, announced, warned)))
        }
        Some(tls) => {
            let (client, connection) = target.config.connect(tls.clone()).await.map_err(failed)?;
            (client, tokio::spawn(drive(connection, announced, warned)))
        }
    };
    let driver = AbortOnDropHandle::new(driver);
    let (limit, lock_limit) = (limit.as_millis(), APPEND_LIMIT.as_millis());
    let settings = format!(
        "SET statement_timeout = {limit}; SET lock_timeout = {lock_limit}; \
         SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning"
    );
    client.batch_execute(&settings).await.map_err(failed)?;
    Ok((client, driver))
}

/// Drives one connection until it ends, and passes on notifications and warnings, which arrive before the reply that
/// they belong to.
async fn drive(
    mut connection: Connection<impl AsyncRead + AsyncWrite + Unpin, impl AsyncRead + AsyncWrite + Unpin>,
    announced: watch::Sender<Position>,
    warned: Arc<AtomicBool>,
) {
    loop {
        match future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let Ok(position) = notification.payload().parse() {
                    announced::raise(&announced, Position(position));
                }
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::warn!(target: "petstore::storage", %notice, "PostgreSQL sent a warning");
                warned.store(true, Ordering::Relaxed);
            }
            Some(Ok(_)) => {}
            // Calls that wait for a reply on this connection get the same error.
            Some(Err(_)) | None => return,
        }
    }
}

/// Distinguishes servers: no two started within the same microsecond.
async fn server_start(client: &Client) -> Result<String, Error> {
    client.query_one("SELECT pg_postmaster_start_time()::text", &[]).await?.try_get(0)
}

fn position(stored: i64) -> Position {
    // The table has only positions above 0. If this constraint was removed, the gap is detected.
    Position(u64::try_from(stored).unwrap_or_default())
}
