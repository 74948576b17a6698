//! The wiring: opens logs, stores and keys.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use adapters::{
    access::{
        Authenticator, RateLimit,
        api_keys::{ApiKeys, KeyFile},
    },
    event_log::remote::RemoteLog,
    first_commit::FirstCommit,
    read_model::MemoryReadModel,
    system::SystemClock,
};
use application::{
    Options, PetStore, ReplayProgress,
    ports::{Clock as _, CommitId, DurabilityLevel, Fault, LogError},
};
use tokio::time::{self, Instant};

use crate::{
    engines::{Engine, Log, Remains, Source},
    store_url::StoreUrl,
};

/// How long to wait at the start for an engine that cannot be reached.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait between two attempts.
const START_PAUSE: Duration = Duration::from_millis(500);

/// Opens the log, and creates it if it does not exist.
pub(crate) async fn open_log(url: &StoreUrl) -> Result<Log, LogError> {
    let (engine, place) = engine_of(url)?;
    (engine.open)(place).await
}

/// Opens a log that exists, and creates nothing.
async fn open_existing_log(url: &StoreUrl) -> Result<Log, LogError> {
    let (engine, place) = engine_of(url)?;
    (engine.open_existing)(place).await
}

/// Finds everything that can be read, without changing the store.
pub(crate) async fn find_remains(url: &StoreUrl) -> Result<Remains, LogError> {
    let (engine, place) = engine_of(url)?;
    (engine.salvage)(place).await
}

fn engine_of(url: &StoreUrl) -> Result<(&'static Engine, String), LogError> {
    match url {
        StoreUrl::Engine { engine, place } => Ok((engine, place.clone())),
        StoreUrl::Service(url) => {
            let detail = format!(
                "{url} is a running service, whose log can only be read (petstore log export, verify, stat, tail, find, copy)"
            );
            Err(LogError::new(Fault::CannotOpen, detail))
        }
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
pub(crate) async fn open_source(url: &StoreUrl, access: &Access) -> Result<Source, LogError> {
    let StoreUrl::Service(service) = url else {
        let (engine, place) = engine_of(url)?;
        return (engine.read)(place).await;
    };
    let key = access.key.as_deref().ok_or_else(|| {
        let detail = "the log of a service needs an API key with the scope log: name its file with --key-file, or put \
                      it into PETSTORE_LOG_KEY";
        LogError::new(Fault::CannotOpen, detail)
    })?;
    Ok(Arc::new(RemoteLog::open(service.clone(), access.ca.as_deref(), key).await?))
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
}

/// Opens the log and replays it into a store that is ready to serve. Waits for an engine that cannot be reached, and
/// rejects one that promises less than required or holds another log than before.
pub(crate) async fn open_store(
    url: &StoreUrl,
    demands: &Demands,
    progress: &Arc<ReplayProgress>,
) -> Result<PetStore, LogError> {
    let deadline = Instant::now() + START_PATIENCE;
    let mut logged = None;
    loop {
        match try_to_open_store(url, demands, progress).await {
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

async fn try_to_open_store(
    url: &StoreUrl,
    demands: &Demands,
    progress: &Arc<ReplayProgress>,
) -> Result<PetStore, LogError> {
    let &Demands { required, ref state, accept_new_log, pets_max } = demands;
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
    let options = Options { required, first_commit, pets_max, ..Options::new(url.access()) };
    let read_model = Arc::<MemoryReadModel>::default();
    let store =
        PetStore::open_with_progress(log, read_model, Arc::new(SystemClock), options, progress.clone())
            .await?;
    if let Some(memory) = memory
        && first_commit.is_none()
    {
        tokio::spawn(remember(memory, accept_new_log, store.first_commit()));
    }
    Ok(store)
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

#[cfg(test)]
#[path = "../../tests/file_engine/engine.rs"]
mod file_engine;

#[cfg(test)]
mod tests {
    use application::{contract, ports::Position};

    use super::{file_engine::FileEngine, *};

    /// The row in `docs/storage-adapters.md`.
    static TABLE: &[Engine] = &[Engine::embedded::<FileEngine>()];

    #[tokio::test(flavor = "multi_thread")]
    async fn a_row_in_the_table_of_engines_opens_and_reads_its_stores() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("log").display().to_string();
        let url = StoreUrl::Engine { engine: &TABLE[0], place };
        contract::a_reopened_log_holds_everything(async || open_log(&url).await.unwrap()).await;
        assert_eq!(open_existing_log(&url).await.unwrap().head().await, Ok(Position(20)));
        let log = open_source(&url, &Access { key: None, ca: None }).await.unwrap();
        let remains = find_remains(&url).await.unwrap();
        assert_eq!(remains.reach, log.head().await.unwrap());
    }
}
