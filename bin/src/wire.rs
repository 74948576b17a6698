//! The wiring: opens logs, stores and keys. Only this file names the types of the storage engines.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

#[cfg(feature = "nats")]
use adapters::event_log::nats::NatsLog;
#[cfg(feature = "postgres")]
use adapters::event_log::postgres::PostgresLog;
#[cfg(feature = "sqlite")]
use adapters::event_log::sqlite::SqliteLog;
use adapters::{
    api_keys::{ApiKeys, KeyFile},
    event_log::{embedded::SalvagedLog, memory::MemoryLog, remote::RemoteLog, sled::SledLog},
    first_commit::FirstCommit,
    read_model::MemoryReadModel,
    snapshot_file::SnapshotFile,
    system::SystemClock,
};
use application::{
    Options, PetStore, RateLimit, Snapshots,
    ports::{
        Authenticator, Clock as _, CommitId, DurabilityLevel, EventLog, Fault, LogError, Position, ReadModel,
        SnapshotStore,
    },
    snapshot::{self, Comparison},
};
use tokio::time::{self, Instant};

use crate::store_url::StoreUrl;

/// How long to wait at the start for an engine that cannot be reached.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait between two attempts.
const START_PAUSE: Duration = Duration::from_millis(500);

type Log = Arc<dyn EventLog>;

/// Opens the log, and creates it if it does not exist.
pub(crate) async fn open_log(url: &StoreUrl) -> Result<Log, LogError> {
    match url {
        StoreUrl::Sled(path) => embedded(path, SledLog::open).await,
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => embedded(path, SqliteLog::open).await,
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => Ok(Arc::new(PostgresLog::open(url).await?)),
        #[cfg(feature = "nats")]
        StoreUrl::Nats(url) => Ok(Arc::new(NatsLog::open(url).await?)),
        StoreUrl::Memory => Ok(Arc::new(MemoryLog::default())),
        StoreUrl::Service(url) => {
            let detail = format!(
                "{url} is a running service, whose log can only be read (petstore log export, verify, stat, tail, find, copy)"
            );
            Err(LogError::new(Fault::CannotOpen, detail))
        }
        #[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "nats")))]
        url => Err(left_out(url)),
    }
}

/// Opens a log to inspect it. Fails if it does not exist.
pub(crate) async fn open_existing_log(url: &StoreUrl) -> Result<Log, LogError> {
    match url {
        StoreUrl::Sled(path) => embedded(path, SledLog::open_to_read).await,
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => embedded(path, SqliteLog::open_to_read).await,
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => Ok(Arc::new(PostgresLog::open_existing(url).await?)),
        #[cfg(feature = "nats")]
        StoreUrl::Nats(url) => Ok(Arc::new(NatsLog::open_existing(url).await?)),
        url => open_log(url).await,
    }
}

/// How the log of a running service may be read.
#[derive(Debug)]
pub(crate) struct Access {
    /// The API key, unless there is none.
    pub(crate) key: Option<String>,
    /// The certificates to trust.
    pub(crate) ca: Option<PathBuf>,
}

/// Opens a log to inspect it, which may be that of a running service.
pub(crate) async fn open_source(url: &StoreUrl, access: &Access) -> Result<Log, LogError> {
    let StoreUrl::Service(service) = url else { return open_existing_log(url).await };
    let key = access.key.as_deref().ok_or_else(|| {
        let detail = "the log of a service needs an API key with the scope log: name its file with --key-file, or put \
                      it into PETSTORE_LOG_KEY";
        LogError::new(Fault::CannotOpen, detail)
    })?;
    Ok(Arc::new(RemoteLog::open(service.clone(), access.ca.as_deref(), key).await?))
}

/// The readable part of a log that may be damaged.
pub(crate) struct Remains {
    pub(crate) log: Log,
    /// The last position that the log is known to have had.
    pub(crate) reach: Position,
    /// Ranges of unreadable positions up to `reach`, if the engine can read past the first of them.
    pub(crate) missing: Option<Vec<(Position, Position)>>,
    /// Whether it is known where the log ended.
    pub(crate) end_is_known: bool,
}

/// Finds everything that can be read, without changing the store. For servers that is what they serve.
pub(crate) async fn find_remains(url: &StoreUrl) -> Result<Remains, LogError> {
    match url {
        StoreUrl::Sled(path) => salvaged(path, SledLog::salvage).await,
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => salvaged(path, SqliteLog::salvage).await,
        #[cfg(feature = "nats")]
        StoreUrl::Nats(url) => {
            let log: Log = Arc::new(NatsLog::salvage(url).await?);
            Ok(Remains { reach: log.head().await?, log, missing: None, end_is_known: true })
        }
        url => {
            let log = open_existing_log(url).await?;
            Ok(Remains { reach: log.head().await?, log, missing: None, end_is_known: true })
        }
    }
}

/// How a store is to be opened.
#[derive(Debug)]
pub(crate) struct Demands {
    pub(crate) required: DurabilityLevel,
    /// The folder that remembers which log a server held.
    pub(crate) state: PathBuf,
    /// Whether the log may be another one than before.
    pub(crate) accept_new_log: bool,
    pub(crate) pets_max: Option<usize>,
    /// After how many commits a snapshot is written; 0 for never.
    pub(crate) snapshot_every: u64,
    /// The folder for snapshots, instead of the one of the log.
    pub(crate) snapshot_dir: Option<PathBuf>,
}

/// Opens the log and replays it into a store that is ready to serve. Waits for an engine that cannot be reached, and
/// rejects one that promises less than required or holds another log than before.
pub(crate) async fn open_store(url: &StoreUrl, demands: &Demands) -> Result<PetStore, LogError> {
    let deadline = Instant::now() + START_PATIENCE;
    let mut logged = None;
    loop {
        match try_to_open_store(url, demands).await {
            Err(error) if error.fault == Fault::Unreachable && Instant::now() < deadline => {
                if logged.as_ref() != Some(&error) {
                    tracing::warn!("waiting for the storage engine: {error}");
                }
                logged = Some(error);
                time::sleep(START_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

async fn try_to_open_store(url: &StoreUrl, demands: &Demands) -> Result<PetStore, LogError> {
    let &Demands { required, ref state, accept_new_log, pets_max, .. } = demands;
    let memory = url.name_of_server_log().map(|name| FirstCommit::of(name, state));
    let first_commit = match &memory {
        Some(memory) if !accept_new_log => memory.recall()?,
        Some(_) | None => None,
    };
    // A log that is gone is not created again: that would be in the way of whoever restores it.
    let log = if first_commit.is_some() { open_existing_log(url).await? } else { open_log(url).await? };
    let durability = log.durability();
    if durability.level < required {
        let detail =
            format!("--require-durability asks for more than {url} promises: {}", durability.promise);
        return Err(LogError::new(Fault::CannotOpen, detail));
    }
    let options = Options { required, first_commit, pets_max, ..Options::new(url.sharing()) };
    let snapshots = match demands.snapshot_every {
        0 => None,
        every => snapshot_store(url, demands.snapshot_dir.as_deref()).map(|file| Snapshots::new(file, every)),
    };
    let store =
        PetStore::open_with(log, empty_read_model(), Arc::new(SystemClock), options, snapshots).await?;
    if let Some(memory) = memory
        && first_commit.is_none()
    {
        tokio::spawn(remember(memory, accept_new_log, store.first_commit()));
    }
    Ok(store)
}

/// Where the snapshot of this log is kept, if it is kept at all.
fn snapshot_store(url: &StoreUrl, folder: Option<&Path>) -> Option<Arc<dyn SnapshotStore>> {
    let file = match (url, folder) {
        (StoreUrl::Memory | StoreUrl::Service(_), _) => return None,
        (url, Some(folder)) => SnapshotFile::in_folder(folder, &url.name_of_log()),
        (StoreUrl::Sled(path), None) => SnapshotFile::beside_log(SledLog::snapshot_path(path)),
        #[cfg(feature = "sqlite")]
        (StoreUrl::Sqlite(path), None) => SnapshotFile::beside_log(SqliteLog::snapshot_path(path)),
        #[cfg(not(feature = "sqlite"))]
        (StoreUrl::Sqlite(_), None) => return None,
        (StoreUrl::Postgres(_) | StoreUrl::Nats(_), None) => return None,
    };
    Some(Arc::new(file))
}

/// Compares the snapshot of a log, if there is one, with what a replay gives.
pub(crate) async fn compare_snapshot(
    url: &StoreUrl,
    folder: Option<&Path>,
    log: &dyn EventLog,
) -> Result<Comparison, LogError> {
    match snapshot_store(url, folder) {
        None => Ok(Comparison::Missing),
        Some(store) => snapshot::compare(log, store, [empty_read_model(), empty_read_model()]).await,
    }
}

fn empty_read_model() -> Arc<dyn ReadModel> {
    Arc::<MemoryReadModel>::default()
}

/// Remembers the first commit once there is one, and forgets the one before if the log may be another one.
async fn remember(
    memory: FirstCommit,
    accept_new_log: bool,
    first_commit: impl Future<Output = Option<CommitId>>,
) {
    let forgotten = if accept_new_log { memory.forget() } else { Ok(()) };
    let remembered = match (forgotten, first_commit.await) {
        (Ok(()), Some(first)) => tokio::task::spawn_blocking(move || memory.remember(first)).await,
        (forgotten, _) => Ok(forgotten),
    };
    if let Ok(Err(error)) = remembered {
        tracing::warn!(
            "the next start will accept any log, because the folder of --state cannot be used: {error}"
        );
    }
}

async fn embedded<L: EventLog>(
    path: &Path,
    open: fn(PathBuf) -> Result<L, LogError>,
) -> Result<Log, LogError> {
    Ok(Arc::new(off_the_runtime(path, open).await?))
}

async fn salvaged(
    path: &Path,
    find: fn(PathBuf) -> Result<SalvagedLog, LogError>,
) -> Result<Remains, LogError> {
    let log = off_the_runtime(path, find).await?;
    let (reach, missing, end_is_known) = (log.reach, log.missing(), log.end_is_known);
    Ok(Remains { log: Arc::new(log.log), reach, missing, end_is_known })
}

/// Embedded engines read their files while they open, which would block the runtime.
async fn off_the_runtime<T: Send + 'static>(
    path: &Path,
    open: fn(PathBuf) -> Result<T, LogError>,
) -> Result<T, LogError> {
    let path = path.to_path_buf();
    let opened = tokio::task::spawn_blocking(move || open(path)).await;
    opened.expect("opening a log never panics")
}

#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "nats")))]
fn left_out(url: &StoreUrl) -> LogError {
    LogError::new(
        Fault::CannotOpen,
        format!("this build does not support {url}: build petstore with its default features"),
    )
}

/// The API keys of the running service.
#[derive(Clone)]
pub(crate) struct Keys {
    keys: Arc<ApiKeys>,
}

impl Keys {
    /// Loads the key file, which is created with a first key if it does not exist, and reloads it when it changes.
    pub(crate) fn open(file: &Path, rate_limit: Option<RateLimit>) -> anyhow::Result<Self> {
        KeyFile::at(file).issue_first(SystemClock.now())?;
        let keys = ApiKeys::open(file, Arc::new(SystemClock), rate_limit)?;
        tokio::spawn(keys.clone().watch());
        Ok(Self { keys })
    }

    pub(crate) fn authenticator(&self) -> Arc<dyn Authenticator> {
        self.keys.clone()
    }

    /// The file with the first key, if that key is still valid.
    pub(crate) fn first_key_in_force(&self) -> Option<PathBuf> {
        self.keys.first_key_in_force()
    }

    /// Reads the key file again.
    pub(crate) fn reload(&self) {
        self.keys.reload();
    }

    /// Records when each key was last used.
    pub(crate) fn close(&self) {
        self.keys.save_last_uses();
    }
}
