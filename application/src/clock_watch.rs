//! Notices clocks that disagree. A node cannot tell which clock is wrong, but a commit from the future shows that one is:
//! the clock of this node is behind, or the one of the node that wrote the commit was ahead.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use chrono::{DateTime, TimeDelta, Utc};

use crate::log_clock::LogClock;

/// Compares the clock of this node with the latest time in the log, and logs each change once.
#[derive(Debug, Default)]
pub(crate) struct ClockWatch {
    disagree: AtomicBool,
}

impl ClockWatch {
    /// Whether the clocks disagree by more than the log clock takes from one commit.
    pub(crate) fn look(&self, now: DateTime<Utc>, newest: DateTime<Utc>) -> bool {
        let behind = behind(now, newest);
        let disagree = behind > LogClock::STEP;
        match (self.disagree.swap(disagree, Relaxed), disagree) {
            (false, true) => tracing::warn!(
                "the clock of this node is {} s behind the latest time in the log: set the clocks of all nodes; request \
                 keys are not forgotten early",
                behind.num_seconds()
            ),
            (true, false) => tracing::info!("the clock of this node agrees with the log again"),
            (false, false) | (true, true) => {}
        }
        disagree
    }
}

/// How far the clock of this node is behind the latest time in the log.
pub(crate) fn behind(now: DateTime<Utc>, newest: DateTime<Utc>) -> TimeDelta {
    (newest - now).max(TimeDelta::zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_log_from_the_future_shows_that_clocks_disagree() {
        let (watch, newest) = (ClockWatch::default(), DateTime::UNIX_EPOCH);
        for (minutes, disagree) in [(0, false), (9, false), (11, true), (-60 * 72, false), (25 * 60, true)] {
            assert_eq!(watch.look(newest - TimeDelta::minutes(minutes), newest), disagree, "{minutes}");
        }
    }
}
