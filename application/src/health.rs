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
    /// Why this node does not follow its log, if so.
    pub log: Option<LogError>,
}

impl Health {
    /// Why this node should get no traffic, if so: the graver reason first.
    pub fn not_ready(&self) -> Option<&LogError> {
        self.reads.as_ref().or(self.writes.as_ref()).or(self.log.as_ref())
    }

    /// Why this node should get no reads, if so. A node that does not know what others wrote would show what is outdated.
    pub fn not_ready_for_reads(&self) -> Option<&LogError> {
        self.reads.as_ref().or(self.log.as_ref())
    }

    /// Why this node should get no writes, if so.
    pub fn not_ready_for_writes(&self) -> Option<&LogError> {
        self.writes.as_ref().or(self.log.as_ref())
    }

    /// Whether a part of this node has ended for good, so that only a restart helps.
    pub fn needs_restart(&self) -> bool {
        let reasons = [&self.reads, &self.writes, &self.log];
        reasons.into_iter().flatten().any(|error| error.fault == Fault::Stopped)
    }
}

/// The health as the parts of a node report it: `writes` is the writer's to set and to clear, `log` is
/// set by the follower and whenever the log lacks the newest applied commit. Logs each change once.
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
    pub(crate) fn stop_writes(&self, error: &LogError) {
        self.change(|health| {
            health.writes = Some(error.clone());
            if error.fault == Fault::AnotherLog {
                health.log = Some(error.clone());
            }
            health.reads = health.reads.take().or_else(|| too_new(error));
        });
    }

    /// What other nodes write does not arrive here.
    pub(crate) fn stop_following(&self, error: &LogError) {
        self.change(|health| {
            health.log = Some(error.clone());
            health.reads = health.reads.take().or_else(|| too_new(error));
        });
    }

    pub(crate) fn resume_writes(&self) {
        self.change(|health| health.writes = None);
    }

    pub(crate) fn resume_following(&self) {
        self.change(|health| health.log = None);
    }

    /// The log has been read up to its end. A follower that stopped needs a restart.
    pub(crate) fn clear_log_error(&self) {
        self.change(|health| {
            health.log = health.log.take().filter(|error| error.fault == Fault::Stopped);
            health.reads = None;
        });
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
