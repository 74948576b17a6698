//! The state of a node. Writer and follower change it only through [`NodeState::apply`].

use parking_lot::{Mutex, RwLock};
use tokio::sync::SetOnce;

use crate::{
    log::{
        commit::{Commit, Entry},
        digest::Digest,
        history::History,
        position::{LogPosition, Recent},
    },
    node::{applied::Applied, idempotency::IdempotencyCache},
    ports::{CommitId, LogError, LogIdentity, ReadModel, Version},
};

pub(crate) struct NodeState {
    state: Mutex<DecisionState>,
    visible: RwLock<Visible>,
    pub(crate) applied: Applied,
    /// The first commit, which identifies the log.
    pub(crate) first: SetOnce<CommitId>,
}

/// The pets that reads show, and the commits that they come from.
struct Visible {
    read_model: Box<dyn ReadModel>,
    recent: Recent,
}

/// The state that decisions need.
#[derive(Debug, Default)]
pub(crate) struct DecisionState {
    pub(crate) history: History,
    /// The pets that were added for requests with a key.
    pub(crate) idempotency: IdempotencyCache,
}

impl DecisionState {
    /// Applies a commit, whose record has this digest. Changes nothing if it is not the next one.
    pub(crate) fn apply(&mut self, commit: &Commit, record: Digest) -> Result<(), LogError> {
        self.history.add(commit, record)?;
        for Entry { event, by, request_key } in &commit.entries {
            if let (Some(key), Some(pet)) = (request_key, event.added()) {
                self.idempotency.insert(by, key, pet.clone());
            }
        }
        Ok(())
    }
}

impl NodeState {
    pub(crate) fn new(read_model: Box<dyn ReadModel>) -> Self {
        let visible = RwLock::new(Visible { read_model, recent: Recent::default() });
        Self { state: Mutex::default(), visible, applied: Applied::default(), first: SetOnce::new() }
    }

    /// Calls `query` with the read model, and also returns the position. No commit is applied until `query` returns.
    pub(crate) fn show<T>(&self, query: impl FnOnce(&dyn ReadModel) -> T) -> (T, LogPosition) {
        let visible = self.visible.read();
        (query(&*visible.read_model), visible.recent.last())
    }

    /// Whether the visible history holds this commit. `None` if the commit is too old to tell.
    pub(crate) fn holds(&self, position: LogPosition) -> Option<bool> {
        self.visible.read().recent.holds(position)
    }

    pub(crate) fn version(&self) -> Version {
        self.state.lock().history.version
    }

    /// The first and the newest commit, or `None` for an empty log.
    pub(crate) fn identity(&self) -> Option<LogIdentity> {
        let Version { position, commit } = self.version();
        Some(LogIdentity { first: *self.first.get()?, position, newest: commit? })
    }

    /// Calls `decide` with the state. No commit is applied until it returns, so it must be quick.
    pub(crate) fn with<T>(&self, decide: impl FnOnce(&DecisionState) -> T) -> T {
        decide(&self.state.lock())
    }

    /// Applies a durable commit, whose record has this digest. Skips a commit that is already applied; rejects one that
    /// does not follow or contradicts the history.
    pub(crate) fn apply(&self, commit: &Commit, record: Digest) -> Result<(), LogError> {
        let mut state = self.state.lock();
        if commit.position <= state.history.version.position {
            return Ok(());
        }
        state.apply(commit, record)?;
        // Fails for every commit but the first.
        let _ = self.first.set(commit.id);
        {
            let mut visible = self.visible.write();
            visible.read_model.apply(commit);
            visible.recent.add(commit.position, record);
        }
        self.applied.reach(commit.position);
        Ok(())
    }
}
