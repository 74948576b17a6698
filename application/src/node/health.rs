//! The health of a node: whether it follows its log, serves reads and accepts writes, and if not, why. Probes report
//! it.

use std::time::Duration;

use crate::ports::{Fault, LogError};

/// How long a node may go without a confirmed head before it reports that it is not ready.
const MAX_STALENESS: Duration = Duration::from_secs(5);

/// The health of a node. The default is healthy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    log: LogState,
    /// The reason why writes are rejected, if they are. Set at startup or by the writer, and cleared by the writer.
    writes: Option<LogError>,
    /// The reason why the follower has ended, if it has.
    follower: Option<LogError>,
}

/// The state of the log, as seen by this node. A node never goes back: it keeps everything that it has applied, and
/// follows only a log that holds its newest commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum LogState {
    /// The log holds the newest applied commit and responds.
    #[default]
    Following,
    /// The log does not respond, and may have been replaced.
    Disconnected(LogError),
    /// The log failed, is damaged, lacks the newest applied commit, or has not responded for too long. This state ends
    /// when the log has been read successfully.
    Unusable(LogError),
}

impl Health {
    /// The reason why this node should get no traffic, if there is one.
    pub fn not_ready(&self) -> Option<&LogError> {
        self.reads_stopped().or(self.writes.as_ref()).or_else(|| self.not_ready_for_reads())
    }

    /// The reason why this node should get no reads, if there is one. Without the commits of other nodes, it would show
    /// outdated pets.
    pub fn not_ready_for_reads(&self) -> Option<&LogError> {
        self.unusable().or(self.follower.as_ref())
    }

    /// The reason why this node should get no writes, if there is one.
    pub fn not_ready_for_writes(&self) -> Option<&LogError> {
        self.writes.as_ref().or_else(|| self.not_ready_for_reads())
    }

    /// Whether a task of this node has ended, so that only a restart helps.
    pub fn needs_restart(&self) -> bool {
        let reasons = [&self.writes, &self.follower];
        reasons.into_iter().flatten().any(|error| error.fault == Fault::Stopped)
    }

    /// The reason why reads are rejected, if they are: the log holds commits that this version of petstore cannot show.
    pub fn reads_stopped(&self) -> Option<&LogError> {
        self.unusable().filter(|error| error.fault == Fault::UnsupportedFormat)
    }

    /// The reason why the log is unusable, if it is.
    pub fn unusable(&self) -> Option<&LogError> {
        match &self.log {
            LogState::Following | LogState::Disconnected(_) => None,
            LogState::Unusable(error) => Some(error),
        }
    }

    /// The error of a log that lacks the newest applied commit, if it does.
    pub fn rejection(&self) -> Option<&LogError> {
        self.unusable().filter(|error| error.fault == Fault::AnotherLog)
    }

    /// The health of a node on a shared log whose head was last confirmed `staleness` ago.
    pub(crate) fn at_staleness(mut self, staleness: Duration) -> Self {
        if staleness > MAX_STALENESS && self.unusable().is_none() && self.follower.is_none() {
            self.log = LogState::Unusable(self.disconnection_error());
        }
        self
    }

    /// The reason why the log does not respond. A log that hangs has no error yet.
    fn disconnection_error(&self) -> LogError {
        match &self.log {
            LogState::Disconnected(error) | LogState::Unusable(error) => error.clone(),
            LogState::Following => {
                Fault::Unreachable.error(format!("no response from the log within {MAX_STALENESS:?}"))
            }
        }
    }

    pub(crate) fn is_following(&self) -> bool {
        self.log == LogState::Following
    }

    /// The log has been read up to its head, and holds the newest applied commit.
    pub(crate) fn follow(&mut self) {
        self.log = LogState::Following;
    }

    /// The log cannot be read. An unusable log stays unusable when the connection to it is lost.
    pub(crate) fn stop_following(&mut self, error: &LogError) {
        self.log = match &self.log {
            _ if error.fault != Fault::Unreachable => LogState::Unusable(error.clone()),
            LogState::Unusable(known) => LogState::Unusable(known.clone()),
            LogState::Following | LogState::Disconnected(_) => LogState::Disconnected(error.clone()),
        };
    }

    /// Writes are rejected. A log that is not this node's log, or too new for it, cannot be followed either.
    pub(crate) fn stop_writes(&mut self, error: &LogError) {
        self.writes = Some(error.clone());
        if matches!(error.fault, Fault::AnotherLog | Fault::UnsupportedFormat) {
            self.log = LogState::Unusable(error.clone());
        }
    }

    /// Stops writes, because a commit has taken longer than [`APPEND_TIMEOUT`].
    ///
    /// [`APPEND_TIMEOUT`]: crate::node::writer::APPEND_TIMEOUT
    pub(crate) fn stop_slow_writes(&mut self) {
        if self.writes.is_none() {
            self.writes = Some(self.disconnection_error());
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
