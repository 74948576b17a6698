//! The health of a node: whether it follows its log, serves reads and accepts writes, and if not, why. Probes report
//! it.

use std::time::Duration;

use crate::ports::{Fault, LogError};

/// How long a node may go without a confirmed head before it reports that it is not ready.
const MAX_STALENESS: Duration = Duration::from_secs(5);

/// The health of a node. The default is healthy. A node never goes back: it keeps everything that it has applied, and
/// follows only a log that holds its newest commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The reason why the log is not followed, if it is not. A log that is only unreachable may have been replaced; any
    /// other makes the log unusable until it has been read successfully.
    pub(crate) log: Option<LogError>,
    /// The reason why writes are rejected, if they are. Set at startup or by the writer, and cleared by the writer.
    pub(crate) writes: Option<LogError>,
    /// The reason why reads show outdated pets, if they do: the follower has ended, or the log has not responded for too
    /// long.
    pub(crate) reads: Option<LogError>,
}

impl Health {
    /// The reason why this node should get no writes, if there is one.
    pub fn not_ready(&self) -> Option<&LogError> {
        self.reads_stopped().or(self.writes.as_ref()).or_else(|| self.not_ready_for_reads())
    }

    /// The reason why this node should get no reads, if there is one. Without the commits of other nodes, it would show
    /// outdated pets.
    pub fn not_ready_for_reads(&self) -> Option<&LogError> {
        self.unusable().or(self.reads.as_ref())
    }

    /// Whether a task of this node has ended, so that only a restart helps.
    pub fn needs_restart(&self) -> bool {
        let reasons = [&self.writes, &self.reads];
        reasons.into_iter().flatten().any(|error| error.fault == Fault::Stopped)
    }

    /// The reason why reads are rejected, if they are: the log holds commits that this version of petstore cannot show.
    pub fn reads_stopped(&self) -> Option<&LogError> {
        self.unusable().filter(|error| error.fault == Fault::UnsupportedFormat)
    }

    /// The reason why the log is unusable, if it is.
    pub fn unusable(&self) -> Option<&LogError> {
        self.log.as_ref().filter(|error| error.fault != Fault::Unreachable)
    }

    /// The error of a log that lacks the newest applied commit, if it does.
    pub fn rejection(&self) -> Option<&LogError> {
        self.unusable().filter(|error| error.fault == Fault::AnotherLog)
    }

    /// The health of a node on a shared log whose head was last confirmed `staleness` ago.
    pub(crate) fn at_staleness(mut self, staleness: Duration) -> Self {
        if staleness > MAX_STALENESS && self.not_ready_for_reads().is_none() {
            self.reads = Some(self.disconnection_error());
        }
        self
    }

    /// The reason why the log does not respond. A log that hangs has no error yet.
    fn disconnection_error(&self) -> LogError {
        let no_error =
            || Fault::Unreachable.error(format!("no response from the log within {MAX_STALENESS:?}"));
        self.log.clone().unwrap_or_else(no_error)
    }

    /// The log cannot be read. An unusable log stays unusable when the connection to it is lost.
    pub(crate) fn stop_following(&mut self, error: &LogError) {
        if error.fault != Fault::Unreachable || self.unusable().is_none() {
            self.log = Some(error.clone());
        }
    }

    /// Writes are rejected. A log that is not this node's log, or too new for it, cannot be followed either.
    pub(crate) fn stop_writes(&mut self, error: &LogError) {
        self.writes = Some(error.clone());
        if matches!(error.fault, Fault::AnotherLog | Fault::UnsupportedFormat) {
            self.log = Some(error.clone());
        }
    }

    /// A commit has taken too long.
    pub(crate) fn stop_slow_writes(&mut self) {
        let error = self.disconnection_error();
        self.writes.get_or_insert(error);
    }
}
