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
    CommitId, Durability, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version,
};
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::AbortHandle,
    time,
};
use tokio_postgres::{AsyncMessage, Client, Connection, Error, NoTls, Statement, types::Type};

use super::{durability, error_mapping, schema, settings::Target};
use crate::event_log::IfMissing;

/// The statement timeout of the server: a little shorter than that of the client, so that no statement runs after the
/// client has given up. No statement waits longer than an append for a lock.
pub(super) const APPEND_LIMIT: Duration = Duration::from_secs(3);
const READ_LIMIT: Duration = Duration::from_secs(14);
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
    drivers: [Driver; 2],
    disconnected: AtomicBool,
    /// The error with which this node ended the session, if the server did not reply.
    pub(super) no_reply: OnceLock<LogError>,
}

/// The task that drives one connection. Dropping it ends the connection.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Connects to the first writable server that holds `newest`, or else to the first writable one. Also returns the
    /// errors of the other servers.
    pub(super) async fn open(
        targets: &[Target],
        if_missing: IfMissing,
        newest: Version,
        announced: &watch::Sender<Position>,
    ) -> (Option<Self>, Vec<LogError>) {
        let (mut older, mut errors) = (None, Vec::new());
        for target in targets {
            let opening = async {
                let mut session = Self::open_at(target, if_missing, announced).await?;
                let holds = session.holds(newest).await;
                session.holds_newest =
                    holds.map_err(|error| error_mapping::query_error(&target.server, &error))?;
                Ok(session)
            };
            match time::timeout(target.connect_timeout, opening).await {
                Ok(Ok(session)) if session.holds_newest => return (Some(session), vec![]),
                Ok(Ok(session)) => {
                    errors.push(Fault::AnotherLog.error(format!(
                        "PostgreSQL at {} lacks the commit at position {} that this node has applied",
                        target.server, newest.position
                    )));
                    older.get_or_insert(session);
                }
                Ok(Err(error)) => errors.push(error),
                Err(_) => errors.push(error_mapping::no_reply(&target.server, target.connect_timeout)),
            }
        }
        (older, errors)
    }

    async fn holds(&self, Version { position, commit }: Version) -> Result<bool, Error> {
        let (Ok(position), Some(commit)) = (i64::try_from(position.0), commit) else { return Ok(true) };
        self.reading.query_one(HOLDS, &[&position, &commit.0]).await?.try_get(0)
    }

    async fn open_at(
        target: &Target,
        if_missing: IfMissing,
        announced: &watch::Sender<Position>,
    ) -> Result<Self, LogError> {
        let warned = Arc::<AtomicBool>::default();
        let ((appending, append_driver), (reading, read_driver)) = tokio::try_join!(
            connect(target, APPEND_LIMIT, announced.clone(), warned.clone()),
            connect(target, READ_LIMIT, announced.clone(), Arc::default())
        )?;
        let failed = |error: Error| error_mapping::query_error(&target.server, &error);
        if server_start(&appending).await.map_err(failed)? != server_start(&reading).await.map_err(failed)? {
            return Err(Fault::Unreachable.error(format!(
                "two connections to {} reached two PostgreSQL servers; name each server in the URL",
                target.server
            )));
        }
        schema::ensure(&appending, &target.server, if_missing).await?;
        let channel = schema::channel(&appending).await.map_err(failed)?;
        reading.batch_execute(&format!("LISTEN {channel}")).await.map_err(failed)?;
        let session = Self {
            server: target.server.clone(),
            holds_newest: false,
            append: appending
                .prepare_typed(
                    APPEND,
                    &[Type::INT8, Type::UUID_ARRAY, Type::BYTEA_ARRAY, Type::TEXT, Type::UUID],
                )
                .await
                .map_err(failed)?,
            channel,
            read: reading.prepare_typed(READ, &[Type::INT8; 3]).await.map_err(failed)?,
            head: reading.prepare(HEAD).await.map_err(failed)?,
            appending,
            reading,
            announced: announced.clone(),
            warned,
            drivers: [append_driver, read_driver],
            disconnected: AtomicBool::new(false),
            no_reply: OnceLock::new(),
        };
        // Listen first: every commit after this head is announced.
        let head = session.head().await.map_err(failed)?;
        announce(&session.announced, head);
        Ok(session)
    }

    /// Stores all records after `expected`, and returns the last of them. Returns `None` if `expected` is not the head.
    pub(super) async fn append(
        &self,
        expected: Version,
        records: &[Record],
    ) -> Result<Option<Version>, Error> {
        let Ok(position) = i64::try_from(expected.position.0) else { return Ok(None) };
        let ids: Vec<_> = records.iter().map(|record| record.id.0).collect();
        let bytes: Vec<_> = records.iter().map(|record| &*record.bytes).collect();
        let before = expected.commit.map(|commit| commit.0);
        self.warned.store(false, Ordering::Relaxed);
        let row = self
            .appending
            .query_opt(&self.append, &[&position, &ids, &bytes, &self.channel, &before])
            .await?;
        Ok(row.map(|_| {
            let last = records.iter().fold(expected, |version, record| version.then(record.id));
            announce(&self.announced, last.position);
            last
        }))
    }

    pub(super) async fn check_writable(&self) -> Result<(), Error> {
        let probed = self.appending.batch_execute(PROBE).await;
        if probed.is_err() {
            // The transaction is still open. If it cannot be rolled back, the connection is unusable.
            self.appending.batch_execute("ROLLBACK").await?;
        }
        probed
    }

    /// Waits until the synchronous standbys have everything that this server has. After a broken connection or a
    /// restart, the server may hold commits that did not wait for the standbys, and readers would take them for
    /// durable.
    pub(super) async fn wait_for_standbys(&self) -> Result<(), LogError> {
        self.warned.store(false, Ordering::Relaxed);
        let waiting = self.appending.query_one(EMPTY_TRANSACTION, &[]);
        let Ok(waited) = time::timeout(STANDBY_TIMEOUT, waiting).await else {
            self.disconnect();
            let what = "is still waiting for its synchronous standbys; see pg_stat_replication";
            return Err(error_mapping::unreachable_error(&self.server, what));
        };
        waited.map_err(|error| error_mapping::query_error(&self.server, &error))?;
        if self.has_warned() {
            let what = "has stopped waiting for its synchronous standbys";
            return Err(error_mapping::unreachable_error(&self.server, what));
        }
        Ok(())
    }

    /// Whether the server has warned about an append.
    pub(super) fn has_warned(&self) -> bool {
        self.warned.load(Ordering::Relaxed)
    }

    pub(super) async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, Error> {
        let Ok(after) = i64::try_from(after.0) else { return Ok(vec![]) };
        let most = |bound: usize| i64::try_from(bound).unwrap_or(i64::MAX);
        let rows = self
            .reading
            .query(&self.read, &[&after, &most(bound.records), &most(bound.bytes.max(1))])
            .await?;
        let records = rows.iter().map(|row| {
            let bytes: &[u8] = row.try_get(1)?;
            Ok(StoredRecord {
                position: position(row.try_get(0)?),
                id: Some(CommitId(row.try_get(2)?)),
                bytes: Bytes::copy_from_slice(bytes),
            })
        });
        records.collect()
    }

    /// Makes the server read rows through the index only, so that it does not read the damaged pages of other rows.
    /// Compilation is off because the disabled scans have such high costs that the server would compile every query.
    pub(super) async fn read_by_index(&self) -> Result<(), Error> {
        let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; DISCARD PLANS";
        self.reading.batch_execute(settings).await
    }

    pub(super) async fn head(&self) -> Result<Position, Error> {
        let before = *self.announced.borrow();
        let head = position(self.reading.query_one(&self.head, &[]).await?.try_get(0)?);
        // An announced position can be read. Reset a false announcement, also of another server; it would wake every wait.
        self.announced.send_if_modified(|announced| {
            let wrong = *announced == before && head < before;
            if wrong {
                *announced = head;
            }
            wrong
        });
        Ok(head)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.disconnected.load(Ordering::Relaxed) && !self.appending.is_closed() && !self.reading.is_closed()
    }

    /// Ends the session at once. The server may still complete its current statement.
    pub(super) fn disconnect(&self) {
        self.disconnected.store(true, Ordering::Relaxed);
        for driver in &self.drivers {
            driver.0.abort();
        }
    }

    /// Awaits a reply. Disconnects from a server that does not send it in time, or is no longer the primary.
    pub(super) async fn reply_within<T>(
        &self,
        timeout: Duration,
        reply: impl Future<Output = Result<T, Error>>,
    ) -> Result<Result<T, Error>, LogError> {
        let Ok(reply) = time::timeout(timeout, reply).await else {
            let error = self.no_reply.get_or_init(|| error_mapping::no_reply(&self.server, timeout));
            self.disconnect();
            return Err(error.clone());
        };
        if reply.as_ref().is_err_and(error_mapping::is_read_only) {
            self.disconnect();
        }
        Ok(reply)
    }

    /// Awaits the reply to a statement other than an append.
    pub(super) async fn in_time<T>(
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
) -> Result<(Client, Driver), LogError> {
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
    let driver = Driver(driver.abort_handle());
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
                    announce(&announced, Position(position));
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

fn announce(announced: &watch::Sender<Position>, position: Position) {
    announced.send_if_modified(|announced| {
        let newer = position > *announced;
        *announced = position.max(*announced);
        newer
    });
}

/// Distinguishes servers: no two started within the same microsecond.
async fn server_start(client: &Client) -> Result<String, Error> {
    client.query_one("SELECT pg_postmaster_start_time()::text", &[]).await?.try_get(0)
}

fn position(stored: i64) -> Position {
    // The table has only positions above 0. If this constraint was removed, the gap is detected.
    Position(u64::try_from(stored).unwrap_or_default())
}
