//! Whether a node follows its log, reads and writes right now, and if not, why. Probes report it, and requests are rejected
//! with it.

use crate::ports::{Fault, LogError};

/// What a node can do right now. The default is a node in good health.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    log: LogState,
    /// Why the writer stores nothing, if so. The writer sets and clears it.
    writes: Option<LogError>,
    /// Why the follower has ended, if so.
    follower: Option<LogError>,
}

/// What a node knows about its log. A node never goes back: it drops nothing that it has applied, and follows only a log
/// that holds its newest commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum LogState {
    /// The log held the newest applied commit, and has responded since.
    #[default]
    Following,
    /// The log has not responded since, and may have been replaced. `Some` once the node is too far out of date for reads.
    Disconnected(Option<LogError>),
    /// Nothing is written to this log: it failed, is damaged, or lacks the newest applied commit. This ends when it has been
    /// read successfully.
    Unusable(LogError),
}

impl Health {
    /// Why this node should get no traffic, if so.
    pub fn not_ready(&self) -> Option<&LogError> {
        self.reads_stopped().or(self.writes.as_ref()).or_else(|| self.not_followed())
    }

    /// Why this node should get no reads, if so. Without the commits of other nodes, it would show outdated pets.
    pub fn not_ready_for_reads(&self) -> Option<&LogError> {
        self.not_followed()
    }

    /// Why this node should get no writes, if so.
    pub fn not_ready_for_writes(&self) -> Option<&LogError> {
        self.writes.as_ref().or_else(|| self.not_followed())
    }

    /// Whether a part of this node has ended for good, so that only a restart helps.
    pub fn needs_restart(&self) -> bool {
        let reasons = [&self.writes, &self.follower];
        reasons.into_iter().flatten().any(|error| error.fault == Fault::Stopped)
    }

    /// Why reads are rejected, if so: the log holds commits that this version of petstore cannot show.
    pub fn reads_stopped(&self) -> Option<&LogError> {
        self.unusable().filter(|error| error.fault == Fault::UnsupportedFormat)
    }

    /// Why nothing may be written to the log, if it is unusable.
    pub fn unusable(&self) -> Option<&LogError> {
        match &self.log {
            LogState::Following | LogState::Disconnected(_) => None,
            LogState::Unusable(error) => Some(error),
        }
    }

    pub(crate) fn is_following(&self) -> bool {
        self.log == LogState::Following
    }

    fn not_followed(&self) -> Option<&LogError> {
        let log = match &self.log {
            LogState::Following => None,
            LogState::Disconnected(error) => error.as_ref(),
            LogState::Unusable(error) => Some(error),
        };
        log.or(self.follower.as_ref())
    }

    /// The log has been read up to its head, and holds the newest applied commit.
    pub(crate) fn follow(&mut self) {
        self.log = LogState::Following;
    }

    /// The log cannot be read. An unusable log stays unusable when the connection to it is lost.
    pub(crate) fn stop_following(&mut self, error: &LogError, is_outdated: bool) {
        self.log = match &self.log {
            _ if error.fault != Fault::Unreachable => LogState::Unusable(error.clone()),
            LogState::Unusable(known) => LogState::Unusable(known.clone()),
            LogState::Following | LogState::Disconnected(_) => {
                LogState::Disconnected(is_outdated.then(|| error.clone()))
            }
        };
    }

    /// Nothing can be written. A log that is not this node's log, or too new for it, cannot be followed either.
    pub(crate) fn stop_writes(&mut self, error: &LogError) {
        self.writes = Some(error.clone());
        if matches!(error.fault, Fault::AnotherLog | Fault::UnsupportedFormat) {
            self.log = LogState::Unusable(error.clone());
        }
    }

    pub(crate) fn resume_writes(&mut self) {
        self.writes = None;
    }

    /// The follower has ended.
    pub(crate) fn stop_follower(&mut self, error: LogError) {
        self.follower = Some(error);
    }
}
