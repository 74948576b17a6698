//! The wiring diagram: the only place that names concrete adapters.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use adapters::{
    api_keys::{ApiKeys, KeyFile},
    event_log::{memory::MemoryLog, sled::SledLog},
    read_model::MemoryReadModel,
    system::SystemClock,
};
use application::{
    PetStore, Sharing,
    ports::{Authenticator, Clock as _, EventLog, LogError},
};

/// Which engine keeps the log, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Sled(PathBuf),
    Memory,
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match url.split_once(':') {
            Some(("sled", path)) if !path.is_empty() => Ok(Self::Sled(path.into())),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(_) | None => Err("write sled:PATH or memory:".into()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sled(path) => write!(formatter, "sled:{}", path.display()),
            Self::Memory => formatter.write_str("memory:"),
        }
    }
}

impl StoreUrl {
    fn sharing(&self) -> Sharing {
        match self {
            Self::Sled(_) | Self::Memory => Sharing::Alone,
        }
    }
}

/// Opens the log, making it if there is none.
pub(crate) async fn open_log(url: &StoreUrl) -> Result<Arc<dyn EventLog>, LogError> {
    match url {
        StoreUrl::Sled(path) => sled(path, SledLog::open).await,
        StoreUrl::Memory => Ok(Arc::new(MemoryLog::default())),
    }
}

/// Opens a log that must be there already, to look into it.
pub(crate) async fn open_existing_log(url: &StoreUrl) -> Result<Arc<dyn EventLog>, LogError> {
    match url {
        StoreUrl::Sled(path) => sled(path, SledLog::open_existing).await,
        StoreUrl::Memory => Ok(Arc::new(MemoryLog::default())),
    }
}

/// sled reads its files while it opens, so it does that where nobody else has to wait.
async fn sled(
    path: &Path,
    open: fn(PathBuf) -> Result<SledLog, LogError>,
) -> Result<Arc<dyn EventLog>, LogError> {
    let path = path.to_path_buf();
    let opened = tokio::task::spawn_blocking(move || open(path)).await;
    Ok(Arc::new(opened.expect("opening a log never panics")?))
}

/// Opens the log and replays it into a store that is ready to serve.
pub(crate) async fn open_store(url: &StoreUrl) -> Result<PetStore, LogError> {
    let log = open_log(url).await?;
    PetStore::open(log, Arc::<MemoryReadModel>::default(), Arc::new(SystemClock), url.sharing()).await
}

/// The API keys of the running service.
pub(crate) struct Keys {
    keys: Arc<ApiKeys>,
    first_key: PathBuf,
}

impl Keys {
    /// Takes the keys of the file, making it with a first key if there is none, and keeps up with it.
    pub(crate) fn open(file: &Path) -> anyhow::Result<Self> {
        KeyFile::at(file).issue_first(SystemClock.now())?;
        let keys = ApiKeys::open(file, Arc::new(SystemClock))?;
        tokio::spawn(keys.clone().watch());
        Ok(Self { keys, first_key: KeyFile::at(file).first_key() })
    }

    pub(crate) fn authenticator(&self) -> Arc<dyn Authenticator> {
        self.keys.clone()
    }

    /// The file with the first key, if that key is still good for something.
    pub(crate) fn first_key_in_force(&self) -> Option<PathBuf> {
        let key = fs::read_to_string(&self.first_key).ok()?;
        self.keys.authenticate(key.trim()).map(|_| self.first_key.clone())
    }

    /// Notes when each key was last used.
    pub(crate) fn close(&self) {
        self.keys.save_last_uses();
    }
}
