//! Connects the adapters: opens logs, stores and keys.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use adapters::{
    access::api_keys::{ApiKeys, KeyFile, KeyFileError},
    event_log::{ReadPurpose, embedded::IN_USE, remote::RemoteLog},
    log_once::LogOnce,
    read_model::MemoryReadModel,
    state_file::StateFile,
    system::SystemClock,
};
use application::{
    Options, PetStore,
    ports::{Clock as _, EventLog, Fault, LogError, LogIdentity, Position, Version},
    transfer::SalvagedLog,
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::{
    config::{AccessArguments, CA_OPTION, ServeArguments},
    engines::{Backend, Location, Log, Source},
    file_owner::check_owner,
    output,
    state_recorder::{self, accept_command},
    store_url::StoreUrl,
};

/// How long startup waits for an engine that cannot be reached.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a command waits for its log to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const START_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Opens the log, and creates it if it does not exist. If a commit of it is known, a server that holds this commit is
/// preferred, and a missing log is [`Fault::AnotherLog`]: a new one would be in the way of a restore.
pub(crate) async fn open_log(url: &StoreUrl, known: Option<Version>) -> Result<Log, LogError> {
    let (engine, place) = engine_of(url)?;
    (engine.open)(place, known).await
}

/// Opens the log, passes it to `work`, and closes it.
pub(crate) async fn with_log<T>(
    url: &StoreUrl,
    work: impl AsyncFnOnce(&dyn EventLog) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let log = open_log(url, None).await?;
    let outcome = work(&*log).await;
    close_log(&*log).await;
    outcome
}

/// Closes the log, unless the disk hangs. Every acknowledged commit is durable in either case.
pub(crate) async fn close_log(log: &dyn EventLog) {
    if time::timeout(CLOSE_TIMEOUT, log.close()).await.is_err() {
        output::print_error("petstore: the log could not be closed; every acknowledged commit is durable");
    }
}

/// Finds every readable record, without changing the store.
pub(crate) async fn salvage(url: &StoreUrl) -> Result<SalvagedLog, LogError> {
    let (engine, place) = engine_of(url)?;
    if let Location::Path { salvage } = engine.location {
        return salvage(place).await.map_err(advise_if_in_use);
    }
    SalvagedLog::new((engine.read)(place, ReadPurpose::Salvage).await?).await
}

/// Says how to read the log of a running service, if that has the store open.
fn advise_if_in_use(error: LogError) -> LogError {
    if !error.detail.ends_with(IN_USE) {
        return error;
    }
    error.fault.error(format!(
        "{error}; if that is a running service, read its log through it: restart it with --admin-listen 127.0.0.1:9080, issue a \
         key with the scope log (umask 077; petstore keys issue --name log --scope log > log.key), and pass \
         http://127.0.0.1:9080 as the store and --api-key-file log.key"
    ))
}

/// Finds every readable record of a copy, which may also be the log of a running service.
pub(crate) async fn salvage_copy(url: &StoreUrl, access: &AccessArguments) -> Result<SalvagedLog, LogError> {
    if let StoreUrl::Engine { .. } = url {
        return salvage(url).await;
    }
    SalvagedLog::new(open_source(url, access).await?).await
}

/// Returns the engine of a store, and its place there. Fails for a running service, and for a store of another user.
pub(crate) fn engine_of(url: &StoreUrl) -> Result<(&'static Backend, String), LogError> {
    match url {
        StoreUrl::Engine { engine, place } => {
            if matches!(engine.location, Location::Path { .. }) {
                check_owner(Path::new(place))?;
            }
            Ok((engine, place.clone()))
        }
        StoreUrl::Service(url) => {
            Err(Fault::CannotOpen.error(format!(
                "{url} is a running service, not a store; petstore log export, verify, stat, tail, find and copy can read its log"
            )))
        }
    }
}

/// Opens a log read-only. It may be the log of a running service.
pub(crate) async fn open_source(url: &StoreUrl, access: &AccessArguments) -> Result<Source, LogError> {
    open_source_to(ReadPurpose::Use, url, access).await
}

/// Opens a log read-only for this purpose.
pub(crate) async fn open_source_to(
    purpose: ReadPurpose,
    url: &StoreUrl,
    access: &AccessArguments,
) -> Result<Source, LogError> {
    let StoreUrl::Service(service) = url else {
        let (engine, place) = engine_of(url)?;
        return (engine.read)(place, purpose).await.map_err(advise_if_in_use);
    };
    let key = access.key().map_err(|problem| Fault::CannotOpen.error(problem))?;
    let key = key.ok_or_else(|| {
        let detail = "reading the log of a service needs an API key with the scope \"log\": name its file with --api-key-file, or \
                      set PETSTORE_API_KEY to the key; petstore keys issue --name log --scope log prints one";
        Fault::CannotOpen.error(detail)
    })?;
    Ok(Arc::new(RemoteLog::open(service.clone(), access.ca.as_deref(), CA_OPTION, &key).await?))
}

/// Opens the log and replays it. Waits for an engine that cannot be reached. Rejects an engine that promises less than
/// required, a log without the recorded commit, and a log with commits but without keys.
pub(crate) async fn open_store(
    arguments: &ServeArguments,
    keys: &ApiKeys,
    progress: &watch::Sender<(Position, Position)>,
) -> Result<(PetStore, Option<Arc<StateFile>>), LogError> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut reported = LogOnce::default();
    loop {
        match try_to_open_store(arguments, keys, progress).await {
            Err(error) if error.fault == Fault::Unreachable && Instant::now() < deadline => {
                if reported.is_change(Some(&error)) {
                    tracing::warn!(target: "petstore::service", %error, "storage engine unreachable, retrying");
                }
                time::sleep(START_RETRY_DELAY).await;
            }
            opened => return opened.map_err(|error| advise(error, arguments)),
        }
    }
}

async fn try_to_open_store(
    arguments: &ServeArguments,
    keys: &ApiKeys,
    progress: &watch::Sender<(Position, Position)>,
) -> Result<(PetStore, Option<Arc<StateFile>>), LogError> {
    let url = &arguments.store;
    let (state_file, known) = state_recorder::open(url, arguments.state_directory().as_deref())?;
    let log = open_log(url, known.map(LogIdentity::version)).await?;
    // The state file comes last: a mistyped path of the key file leaves no files next to it.
    let checked = check(&*log, arguments, keys).await;
    if let Err(error) = checked.and_then(|()| state_file.as_deref().map_or(Ok(()), state_recorder::prepare)) {
        log.close().await;
        return Err(error);
    }
    let options = Options {
        required: arguments.require_durability,
        known,
        pets_max: arguments.max_pets,
        progress: progress.clone(),
        ..Options::new(url.access())
    };
    let read_model = Box::<MemoryReadModel>::default();
    let store = PetStore::open(log, read_model, Arc::new(SystemClock), options).await?;
    Ok((store, state_file))
}

/// Rejects a log that promises less than required, and a log with commits if there is no key file: a new one would
/// reject every client.
async fn check(log: &dyn EventLog, arguments: &ServeArguments, keys: &ApiKeys) -> Result<(), LogError> {
    let (url, durability) = (&arguments.store, log.durability());
    if durability.level < arguments.require_durability {
        return Err(Fault::CannotOpen.error(format!(
            "the store {url} promises less than --require-durability asks for ({})",
            durability.promise
        )));
    }
    if keys.is_loaded() || log.head().await? == Position::START {
        return Ok(());
    }
    let missing = KeyFileError::Missing(arguments.keys.clone());
    Err(Fault::CannotOpen.error(format!("the log {url} is not empty, but {missing}")))
}

/// Advice for a damaged log.
pub(crate) const DAMAGE_ADVICE: &str = "restore a backup, or copy the intact commits into a new store with petstore log salvage; its flag --also fills gaps from \
     another copy";

/// Adds advice to the error of a log that is damaged or lacks the recorded commit.
fn advise(error: LogError, arguments: &ServeArguments) -> LogError {
    let advice = match (error.fault, arguments.state_directory()) {
        (Fault::Damaged, _) => DAMAGE_ADVICE.to_owned(),
        (Fault::AnotherLog, Some(state)) => format!(
            "restore the log, or accept it as it is with {}",
            accept_command(&arguments.store, &state)
        ),
        _ => return error,
    };
    error.fault.error(format!("{error}; {advice}"))
}

/// Loads the key file, and reloads it when it changes. Before the first start, there is none.
pub(crate) fn open_keys(arguments: &ServeArguments) -> anyhow::Result<Arc<ApiKeys>> {
    let keys = ApiKeys::open(key_file(&arguments.keys)?, Arc::new(SystemClock), arguments.rate_limit)?;
    tokio::spawn(keys.clone().watch());
    Ok(keys)
}

/// Creates the key file of an empty log with a first key. Returns the file with that key, or `None` if there are keys.
pub(crate) fn issue_first_key(arguments: &ServeArguments, keys: &ApiKeys) -> anyhow::Result<Option<PathBuf>> {
    if keys.is_loaded() {
        return Ok(None);
    }
    let first_key = key_file(&arguments.keys)?.issue_first(SystemClock.now())?;
    keys.reload()?;
    if let Some(file) = &first_key {
        tracing::info!(target: "petstore::keys", file = %file.display(), "first API key issued");
    }
    Ok(first_key)
}

/// The key file at this path, unless root would work on a key file of another user.
pub(crate) fn key_file(path: &Path) -> anyhow::Result<KeyFile> {
    check_owner(path)?;
    Ok(KeyFile::at(path))
}

#[cfg(test)]
#[path = "../../tests/storage/file_engine/engine.rs"]
mod file_engine;

#[cfg(test)]
mod tests {
    use application::{log::contract, ports::CommitId};

    use super::{file_engine::FileEngine, *};

    /// The row in `docs/storage-adapters.md`.
    static TABLE: &[Backend] = &[Backend::embedded::<FileEngine>()];

    #[tokio::test(flavor = "multi_thread")]
    async fn a_row_in_the_table_of_engines_opens_and_reads_its_stores() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("log").display().to_string();
        let url = StoreUrl::Engine { engine: &TABLE[0], place };
        contract::a_reopened_log_holds_everything(async || open_log(&url, None).await.unwrap()).await;
        let id = CommitId(uuid::Uuid::nil());
        let log = open_log(&url, Some(Version::at(Position(40), id))).await.unwrap();
        assert_eq!(log.head().await, Ok(Position(40)));
        log.close().await;
        let log = open_source(&url, &AccessArguments::default()).await.unwrap();
        let salvaged = salvage(&url).await.unwrap();
        assert_eq!(salvaged.last_known, log.head().await.unwrap());
    }
}
