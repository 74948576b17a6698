//! The state file of a log, and the task that keeps it up to date, so that the node never goes back.

use std::{fmt::Display, path::Path, sync::Arc, time::Duration};

use adapters::{log_once::LogOnce, state_file::StateFile};
use application::{
    PetStore,
    ports::{Fault, LogError, LogIdentity},
};
use tokio::{sync::Mutex, time};

use crate::{file_owner::check_owner, output, store_url::StoreUrl};

const RECORD_INTERVAL: Duration = Duration::from_secs(3);

/// Updates the state file, if there is one.
#[derive(Clone)]
pub(crate) struct StateRecorder {
    record: Option<Arc<StateFile>>,
    last: Arc<Mutex<LastUpdate>>,
}

#[derive(Default)]
struct LastUpdate {
    /// The recorded log. It is not recorded again, because the operator may have accepted another log in the meantime.
    recorded: Option<LogIdentity>,
    failure: LogOnce,
}

impl StateRecorder {
    pub(crate) fn new(url: &StoreUrl, state: Option<&Path>) -> Result<Self, LogError> {
        let none = Self { record: None, last: Arc::default() };
        let Some(directory) = state else { return Ok(none) };
        let Some(record) = state_file(url, directory)? else { return Ok(none) };
        record.prepare().map_err(|error| {
            let advice = if matches!(record.read(), Ok(None)) {
                "free some space if the disk is full, name another directory with --state, or pass --state none to run \
                 without a state file"
            } else {
                "make it a directory that this user can write to; with another --state or --state none, the node would \
                 accept any log"
            };
            let directory = directory.display();
            Fault::CannotOpen
                .error(format!("the state file cannot be written to {directory} ({error}): {advice}"))
        })?;
        Ok(Self { record: Some(Arc::new(record)), last: Arc::default() })
    }

    pub(crate) fn read(&self, url: &StoreUrl) -> Result<Option<LogIdentity>, LogError> {
        let Some(record) = &self.record else { return Ok(None) };
        record.read().map_err(|error| {
            let file = record.file();
            let directory = file.parent().unwrap_or(Path::new("."));
            Fault::CannotOpen.error(format!(
                "the state file {} cannot be used ({error}): restore it, or accept the log as it is with {}",
                file.display(),
                accept_command(url, directory)
            ))
        })
    }

    /// Records the newest commit that the store has applied.
    pub(crate) async fn record(&self, identity: Option<LogIdentity>) {
        let (Some(identity), Some(record)) = (identity, self.record.clone()) else { return };
        if self.last.lock().await.recorded == Some(identity) {
            return;
        }
        let updated = tokio::task::spawn_blocking(move || record.advance(identity)).await;
        // A runtime that shuts down cancels the work.
        let Ok(updated) = updated else { return };
        let mut last = self.last.lock().await;
        if updated.is_ok() {
            last.recorded = Some(identity);
        }
        if last.failure.is_change(updated.as_ref().err())
            && let Err(error) = updated
        {
            tracing::warn!(target: "petstore::service", %error, "cannot update the state file");
        }
    }

    /// Records the first commit, and then every few seconds and whenever the health changes, for as long as it is
    /// polled. So a node that stops following its log records the newest commit that it has applied.
    pub(crate) async fn run(self, store: Arc<PetStore>) {
        let mut health = store.health_changes();
        store.first_applied().await;
        loop {
            self.record(store.identity()).await;
            // An error is impossible: the store holds the sender.
            let _ = time::timeout(RECORD_INTERVAL, health.changed()).await;
        }
    }
}

/// The command that accepts the log with this URL, for the state file in this directory.
pub(crate) fn accept_command(url: &StoreUrl, state: &Path) -> String {
    let quoted = |text: &dyn Display| output::shell_quoted(&text.to_string());
    format!("petstore log accept --store {} --state {}", quoted(url), quoted(&state.display()))
}

/// The state file of the log with this URL in this directory; `None` for a log in memory.
pub(crate) fn state_file(url: &StoreUrl, directory: &Path) -> Result<Option<StateFile>, LogError> {
    let Some(name) = url.log_name() else { return Ok(None) };
    if url.contains(directory) {
        return Err(Fault::CannotOpen.error(format!(
            "--state {} is inside the store {url}: choose another path for one of them",
            directory.display()
        )));
    }
    if directory.is_file() {
        let detail = format!("--state {} is a file: name a directory", directory.display());
        return Err(Fault::CannotOpen.error(detail));
    }
    let record = StateFile::of(name, directory);
    check_owner(record.file()).map_err(|error| Fault::CannotOpen.error(error))?;
    Ok(Some(record))
}
