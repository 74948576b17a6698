//! The state file of a log, and the task that keeps it up to date, so that the node never goes back.

use std::{fmt::Display, path::Path, sync::Arc, time::Duration};

use adapters::{log_once::LogOnce, state_file::StateFile};
use application::{
    PetStore,
    ports::{Fault, LogError, LogIdentity},
};
use tokio::{task::spawn_blocking, time};

use crate::{file_owner::check_owner, output, store_url::StoreUrl};

const RECORD_INTERVAL: Duration = Duration::from_secs(3);

/// The state file of a node, if it has one, and the recorded log. Nothing is created.
pub(crate) fn open(
    url: &StoreUrl,
    state: Option<&Path>,
) -> Result<(Option<Arc<StateFile>>, Option<LogIdentity>), LogError> {
    let Some(directory) = state else { return Ok((None, None)) };
    let Some(file) = state_file(url, directory)? else { return Ok((None, None)) };
    let recorded = file.read().map_err(|error| {
        Fault::CannotOpen.error(format!(
            "the state file {} cannot be used ({error}): restore it, or accept the log as it is with {}",
            file.file().display(),
            accept_command(url, directory)
        ))
    })?;
    Ok((Some(Arc::new(file)), recorded))
}

/// Checks that the state file can be written, and creates its directory.
pub(crate) fn prepare(file: &StateFile) -> Result<(), LogError> {
    file.prepare().map_err(|error| {
        let advice = if matches!(file.read(), Ok(None)) {
            "free some space if the disk is full, name another directory with --state, or pass --state none to run \
             without a state file"
        } else {
            "make it a directory that this user can write to; with another --state or --state none, the node would \
             accept any log"
        };
        let directory = file.file().parent().unwrap_or(Path::new(".")).display();
        Fault::CannotOpen.error(format!("the state file cannot be written to {directory} ({error}): {advice}"))
    })
}

/// Records the newest commit that the store has applied.
pub(crate) async fn record(file: &Arc<StateFile>, store: &PetStore, failure: &mut LogOnce) {
    let (Some(identity), file) = (store.identity(), file.clone()) else { return };
    // A runtime that shuts down cancels the work.
    let Ok(recorded) = spawn_blocking(move || file.advance(identity)).await else { return };
    if failure.is_change(recorded.as_ref().err())
        && let Err(error) = recorded
    {
        tracing::warn!(target: "petstore::service", %error, "cannot update the state file");
    }
}

/// Records the first commit, and then every few seconds and whenever the health changes, for as long as it is
/// polled. So a node that stops following its log records the newest commit that it has applied.
pub(crate) async fn run(file: Arc<StateFile>, store: Arc<PetStore>) {
    let (mut health, mut failure) = (store.health_changes(), LogOnce::default());
    store.first_applied().await;
    loop {
        record(&file, &store, &mut failure).await;
        // An error is impossible: the store holds the sender.
        let _ = time::timeout(RECORD_INTERVAL, health.changed()).await;
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
    check_owner(record.file())?;
    Ok(Some(record))
}
