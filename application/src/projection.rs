//! The state of a node, and the only way to change it: writer and follower both go through
//! [`Projection::apply`].

use std::sync::{Arc, OnceLock};

use domain::PetEvent;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    commit::Commit,
    history::History,
    idempotency::Answered,
    ports::{CommitId, Fault, LogError, Position, ReadModel, Version},
};

/// Everything a node knows, all of it rebuilt from the log.
pub(crate) struct Projection {
    state: Mutex<State>,
    read_model: Arc<dyn ReadModel>,
    applied: watch::Sender<Position>,
    /// The first commit of the log, which tells logs apart. It survives a reset: another log is not a replay.
    first: OnceLock<CommitId>,
}

/// What decisions are made on.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What was applied.
    pub(crate) history: History,
    /// Which requests were answered.
    pub(crate) answered: Answered,
}

impl Projection {
    pub(crate) fn new(read_model: Arc<dyn ReadModel>, first: Option<CommitId>) -> Self {
        read_model.clear();
        let first = first.map_or_else(OnceLock::new, OnceLock::from);
        Self { state: Mutex::default(), read_model, applied: watch::Sender::default(), first }
    }

    pub(crate) fn read_model(&self) -> &dyn ReadModel {
        &*self.read_model
    }

    pub(crate) fn version(&self) -> Version {
        self.state.lock().history.version
    }

    /// The first commit of the log, if it ever had one.
    pub(crate) fn first(&self) -> Option<CommitId> {
        self.first.get().copied()
    }

    /// Tells when later positions are applied.
    pub(crate) fn positions(&self) -> watch::Receiver<Position> {
        self.applied.subscribe()
    }

    /// Looks at the state. Nothing can be applied meanwhile, so be quick.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&State) -> T) -> T {
        at(&self.state.lock())
    }

    /// Applies a commit that is durable: skips it if it was applied before, refuses it whole if something is
    /// missing before it or if it contradicts the history.
    pub(crate) fn apply(&self, commit: &Commit, bytes: &[u8]) -> Result<(), LogError> {
        let mut state = self.state.lock();
        if commit.position <= state.history.version.position {
            return Ok(());
        }
        if state.history.version == Version::START
            && self.first.get().is_some_and(|first| *first != commit.id)
        {
            return Err(another_log("begins with another commit than before"));
        }
        let now = state.history.add(commit, bytes)?;
        self.first.get_or_init(|| commit.id);
        for entry in &commit.entries {
            if let Some(key) = &entry.request_key {
                let PetEvent::Added(pet) = &entry.event;
                state.answered.remember((entry.by.clone(), key.clone()), pet.clone(), now);
            }
        }
        self.read_model.apply(commit);
        self.applied.send_replace(commit.position);
        Ok(())
    }

    /// Forgets everything, to be filled again from the start of the log.
    pub(crate) fn reset(&self) {
        let mut state = self.state.lock();
        *state = State::default();
        self.read_model.clear();
        self.applied.send_replace(Position::START);
    }
}

/// The log is not the one that this store had.
pub(crate) fn another_log(what: &str) -> LogError {
    let detail = format!(
        "the log {what}: restore it, or start the service with --accept-new-log to use it as it is now"
    );
    LogError::new(Fault::AnotherLog, detail)
}
