//! Whether a node can read, write and follow the log right now, and if not, why. Probes report it, and
//! requests are rejected with it.

use tokio::sync::watch;

use crate::ports::{Fault, LogError};

/// What a node can do right now. The default is a node in good health.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Why nothing can be written, if so.
    pub writes: Option<LogError>,
    /// Why nothing can be read, if so.
    pub reads: Option<LogError>,
    /// Why this node no longer knows what others wrote, if so.
    pub sight: Option<LogError>,
}

impl Health {
    /// Why this node should get no traffic, if so: the graver reason first.
    pub fn not_ready(&self) -> Option<&LogError> {
        self.reads.as_ref().or(self.writes.as_ref()).or(self.sight.as_ref())
    }

    /// Why this node should get no reads, if so. A node that does not know what others wrote would show what is outdated.
    pub fn not_ready_for_reads(&self) -> Option<&LogError> {
        self.reads.as_ref().or(self.sight.as_ref())
    }

    /// Why this node should get no writes, if so.
    pub fn not_ready_for_writes(&self) -> Option<&LogError> {
        self.writes.as_ref().or(self.sight.as_ref())
    }

    /// Whether a part of this node has ended for good, so that only a restart helps.
    pub fn needs_restart(&self) -> bool {
        let reasons = [&self.reads, &self.writes, &self.sight];
        reasons.into_iter().flatten().any(|error| error.fault == Fault::Stopped)
    }
}

/// The health as the parts of a node report it: `writes` is the writer's to set and to clear, `sight` the
/// follower's, and `reads` belongs to whoever compares the node with the log. Logs each change once.
#[derive(Debug, Default)]
pub(crate) struct Monitor(watch::Sender<Health>);

impl Monitor {
    pub(crate) fn now(&self) -> Health {
        self.0.borrow().clone()
    }

    /// Why nothing can be read, if so.
    pub(crate) fn reads(&self) -> Option<LogError> {
        self.0.borrow().reads.clone()
    }

    /// Nothing can be written. If that is because this program is too old for the log, what it would show to
    /// readers is no longer the truth either.
    pub(crate) fn writes_stopped(&self, error: &LogError) {
        self.change(|health| {
            health.writes = Some(error.clone());
            health.reads = health.reads.take().or_else(|| too_new(error));
        });
    }

    /// The log is out of sight: what others write does not arrive here.
    pub(crate) fn out_of_sight(&self, error: &LogError) {
        self.change(|health| {
            health.sight = Some(error.clone());
            health.reads = health.reads.take().or_else(|| too_new(error));
        });
    }

    /// What this node holds is not to be shown.
    pub(crate) fn reads_stopped(&self, error: &LogError) {
        self.change(|health| health.reads = Some(error.clone()));
    }

    pub(crate) fn writes_go_on(&self) {
        self.change(|health| health.writes = None);
    }

    pub(crate) fn in_sight(&self) {
        self.change(|health| health.sight = None);
    }

    /// The log is no longer unfit for this reason, whoever has seen that first.
    pub(crate) fn fit_again(&self, reason: &LogError) {
        self.change(|health| health.sight = health.sight.take().filter(|error| error != reason));
    }

    pub(crate) fn reads_go_on(&self) {
        self.change(|health| health.reads = None);
    }

    fn change(&self, change: impl FnOnce(&mut Health)) {
        self.0.send_if_modified(|health| {
            let before = health.clone();
            change(health);
            match (before.not_ready(), health.not_ready()) {
                (None, Some(error)) => tracing::error!(fault = %error.fault, "not ready: {error}"),
                (Some(_), None) => tracing::info!("ready again"),
                (Some(old), Some(new)) if old != new => {
                    tracing::warn!(fault = %new.fault, "still not ready: {new}");
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
            before != *health
        });
    }
}

fn too_new(error: &LogError) -> Option<LogError> {
    (error.fault == Fault::UnsupportedFormat).then(|| error.clone())
}
