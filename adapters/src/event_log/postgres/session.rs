//! Two connections to one server and what is asked over them: one only appends, so that nothing delays a commit;
//! the other reads and listens. They live and die together.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use application::ports::{Durability, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version};
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::AbortHandle,
    time,
};
use tokio_postgres::{AsyncMessage, Client, Connection, Error, NoTls, Statement, types::Type};

use super::{
    durability, error_mapping,
    schema::{self, Tables},
    settings::{Settings, Target},
};

/// How long the server works on a statement. A little less than its client waits for it, so that nothing goes on
/// for a client that has given up.
const APPEND_LIMIT: Duration = Duration::from_secs(3);
const READ_LIMIT: Duration = Duration::from_secs(14);

/// Positions come from the primary key, never from a sequence: those become visible out of order. The condition
/// keeps gaps out, which the key alone would allow; and whoever sees a row sees the ones before it. It compares the id of
/// the commit before in the same statement, so that nothing is stored on top of another history than the one it was
/// decided on.
const APPEND: &str = "\
    WITH stored AS (\
        INSERT INTO petstore_commits (position, id, bytes) \
        SELECT $1 + 1, $2, $3 WHERE ($1 = 0 AND $5 IS NULL) \
            OR EXISTS (SELECT 1 FROM petstore_commits WHERE position = $1 AND id = $5) \
        ON CONFLICT (position) DO NOTHING RETURNING position) \
    SELECT pg_notify($4, position::text) FROM stored";

/// The sizes decide how many rows come, before any of the bytes are looked at.
const READ: &str = "\
    SELECT position, bytes FROM (\
        SELECT position, bytes, \
            sum(octet_length(bytes)) OVER (ORDER BY position) - octet_length(bytes) AS bytes_before \
        FROM petstore_commits WHERE position > $1 ORDER BY position LIMIT $2) AS batch \
    WHERE bytes_before < $3 ORDER BY position";

/// Something to wait for that is no commit of ours: every commit waits for the standbys, with all that is before it.
const MARK: &str = "SELECT pg_logical_emit_message(true, 'petstore', '')";
const HEAD: &str = "SELECT coalesce(max(position), 0) FROM petstore_commits";

/// An open session with one server.
pub(super) struct Session {
    server: String,
    appending: Client,
    append: Statement,
    /// Where nodes tell each other about commits: the table has an oid of its own, so nobody else uses it.
    channel: String,
    reading: Client,
    read: Statement,
    head: Statement,
    /// The last position that was told of. Sessions do not share it: another server may know less.
    news: Arc<watch::Sender<Position>>,
    /// Whether the server has warned the connection that appends. It says so when a commit did not wait for the
    /// standbys after all, and calls the commit a success.
    warned: Arc<AtomicBool>,
    drivers: [Driver; 2],
    hung_up: AtomicBool,
}

/// The task that moves the bytes of one connection. The connection ends with it.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Connects to the first server of the settings that can be written to.
    pub(super) async fn open(settings: &Settings, tables: Tables) -> Result<Self, LogError> {
        let mut errors: Vec<LogError> = Vec::new();
        for target in settings.targets() {
            match time::timeout(target.connect_timeout, Self::open_at(target, tables)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => errors.push(error),
                Err(_) => {
                    let detail = format!("PostgreSQL at {} does not answer", target.server);
                    errors.push(LogError::new(Fault::Unreachable, detail));
                }
            }
        }
        Err(error_mapping::combined(errors))
    }

    async fn open_at(target: &Target, tables: Tables) -> Result<Self, LogError> {
        let news = Arc::new(watch::Sender::new(Position::START));
        let (append_ears, read_ears) = (Ears::new(&news), Ears::new(&news));
        let warned = append_ears.warned.clone();
        let ((appending, append_driver), (reading, read_driver)) = tokio::try_join!(
            connect(target, append_ears, APPEND_LIMIT),
            connect(target, read_ears, READ_LIMIT)
        )?;
        let failed = |error: Error| error_mapping::query_error(&target.server, &error);
        if server_start(&appending).await.map_err(failed)? != server_start(&reading).await.map_err(failed)? {
            let detail = format!(
                "two connections to {} reached two PostgreSQL servers; name each server in the URL",
                target.server
            );
            return Err(LogError::new(Fault::Unreachable, detail));
        }
        schema::ensure(&appending, &target.server, tables).await?;
        let channel = schema::channel(&appending).await.map_err(failed)?;
        reading.batch_execute(&format!("LISTEN {channel}")).await.map_err(failed)?;
        let session = Self {
            server: target.server.clone(),
            append: appending
                .prepare_typed(APPEND, &[Type::INT8, Type::UUID, Type::BYTEA, Type::TEXT, Type::UUID])
                .await
                .map_err(failed)?,
            channel,
            read: reading.prepare_typed(READ, &[Type::INT8; 3]).await.map_err(failed)?,
            head: reading.prepare(HEAD).await.map_err(failed)?,
            appending,
            reading,
            news,
            warned,
            drivers: [append_driver, read_driver],
            hung_up: AtomicBool::new(false),
        };
        // Listening goes first: what is not in this head will be told of.
        let head = session.head().await.map_err(failed)?;
        tell(&session.news, head);
        Ok(session)
    }

    /// Stores the record after `expected`; `None` if that is not the head.
    pub(super) async fn append(&self, expected: Version, record: &Record) -> Result<Option<Position>, Error> {
        let Ok(position) = i64::try_from(expected.position.0) else { return Ok(None) };
        let bytes = &*record.bytes;
        let before = expected.commit.map(|commit| commit.0);
        self.warned.store(false, Ordering::Relaxed);
        let row = self
            .appending
            .query_opt(&self.append, &[&position, &record.id.0, &bytes, &self.channel, &before])
            .await?;
        Ok(row.map(|_| {
            tell(&self.news, expected.position.next());
            expected.position.next()
        }))
    }

    /// Waits until the synchronous standbys have everything that this server has. After a broken connection or a
    /// restart it may hold commits that never waited for them, and whoever reads those takes them for stored.
    pub(super) async fn wait_for_standbys(&self) -> Result<(), Error> {
        self.warned.store(false, Ordering::Relaxed);
        self.appending.query_one(MARK, &[]).await.map(|_| ())
    }

    /// Whether the server has warned of an append.
    pub(super) fn has_warned(&self) -> bool {
        self.warned.load(Ordering::Relaxed)
    }

    /// Records after `after`, within `bound`.
    pub(super) async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, Error> {
        let Ok(after) = i64::try_from(after.0) else { return Ok(vec![]) };
        let most = |bound: usize| i64::try_from(bound).unwrap_or(i64::MAX);
        let rows = self
            .reading
            .query(&self.read, &[&after, &most(bound.records), &most(bound.bytes.max(1))])
            .await?;
        let records = rows.iter().map(|row| {
            let bytes: &[u8] = row.try_get(1)?;
            Ok(StoredRecord { position: position(row.try_get(0)?), bytes: Bytes::copy_from_slice(bytes) })
        });
        records.collect()
    }

    /// The last position.
    pub(super) async fn head(&self) -> Result<Position, Error> {
        let told = *self.news.borrow();
        let head = position(self.reading.query_one(&self.head, &[]).await?.try_get(0)?);
        // What a true notification tells can be read. Forget a false one, or it would wake everybody for ever.
        self.news.send_if_modified(|news| {
            let believed = *news == told && head < told;
            if believed {
                *news = head;
            }
            believed
        });
        Ok(head)
    }

    /// Waits until a position beyond this one is told of, for ever if need be.
    pub(super) async fn news_beyond(&self, position: Position) {
        // The sender lives in this session, so the wait does not end without news.
        let _ = self.news.subscribe().wait_for(|news| *news > position).await;
    }

    pub(super) fn is_open(&self) -> bool {
        !self.hung_up.load(Ordering::Relaxed) && !self.appending.is_closed() && !self.reading.is_closed()
    }

    /// Ends the session at once. What the server was doing for it may still happen.
    pub(super) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Relaxed);
        for driver in &self.drivers {
            driver.0.abort();
        }
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// What the server does before it acknowledges a commit.
    pub(super) async fn durability(&self) -> Result<Durability, Error> {
        durability::look_up(&self.reading).await
    }
}

/// Who hears what a server says without being asked. It comes before the answer that it is about.
struct Ears {
    news: Arc<watch::Sender<Position>>,
    warned: Arc<AtomicBool>,
}

impl Ears {
    fn new(news: &Arc<watch::Sender<Position>>) -> Self {
        Self { news: news.clone(), warned: Arc::default() }
    }
}

async fn connect(target: &Target, ears: Ears, limit: Duration) -> Result<(Client, Driver), LogError> {
    let failed = |error: Error| error_mapping::connect_error(&target.server, &error);
    let (client, driver) = match &target.tls {
        None => {
            let (client, connection) = target.config.connect(NoTls).await.map_err(failed)?;
            (client, tokio::spawn(drive(connection, ears)))
        }
        Some(tls) => {
            let (client, connection) = target.config.connect(tls.clone()).await.map_err(failed)?;
            (client, tokio::spawn(drive(connection, ears)))
        }
    };
    let driver = Driver(driver.abort_handle());
    let limit = limit.as_millis();
    let settings = format!(
        "SET statement_timeout = {limit}; SET lock_timeout = {limit}; \
         SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning"
    );
    client.batch_execute(&settings).await.map_err(failed)?;
    Ok((client, driver))
}

/// Moves the bytes of one connection until it ends, and passes on what is told of.
async fn drive<S, T>(mut connection: Connection<S, T>, ears: Ears)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(told))) => {
                if let Ok(told) = told.payload().parse() {
                    tell(&ears.news, Position(told));
                }
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::warn!("PostgreSQL: {notice}");
                ears.warned.store(true, Ordering::Relaxed);
            }
            Some(Ok(_)) => {}
            // Whoever waits for an answer on this connection gets the same error.
            Some(Err(_)) | None => return,
        }
    }
}

fn tell(news: &watch::Sender<Position>, told: Position) {
    news.send_if_modified(|news| {
        let newer = told > *news;
        *news = told.max(*news);
        newer
    });
}

/// Tells servers apart: no two started within the same microsecond.
async fn server_start(client: &Client) -> Result<String, Error> {
    client.query_one("SELECT pg_postmaster_start_time()::text", &[]).await?.try_get(0)
}

fn position(stored: i64) -> Position {
    // The table takes none below 1; if somebody has changed that, the gap is noticed.
    Position(u64::try_from(stored).unwrap_or_default())
}
