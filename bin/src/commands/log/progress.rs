//! Progress bars of the log commands. They appear on a terminal only.

use application::{
    log::commit::Commit,
    ports::{EventLog, LogError, LogSource, Position},
    transfer::{self, CopyError, Tally},
};
use indicatif::{ProgressBar, ProgressStyle};

/// Reads and checks every record, shows the progress, and passes each commit to `visit`.
pub(super) async fn check_all(
    log: &dyn LogSource,
    tally: &mut Tally,
    mut visit: impl FnMut(&Commit),
) -> Result<(), LogError> {
    let progress = ProgressDisplay::through(log).await?;
    transfer::walk(log, tally, async |_, commit| {
        progress.reached(commit.position);
        visit(commit);
        Ok(())
    })
    .await
}

/// Copies a log up to its head, and shows the progress.
pub(super) async fn copy_all(
    from: &dyn LogSource,
    to: &dyn EventLog,
    tally: &mut Tally,
) -> Result<(), CopyError> {
    let progress = ProgressDisplay::through(from).await?;
    transfer::copy(from, to, tally, |commit| progress.reached(commit.position)).await
}

/// A progress bar. It disappears when it is dropped.
pub(super) struct ProgressDisplay(ProgressBar);

impl ProgressDisplay {
    /// Shows progress up to the head of this log.
    pub(super) async fn through(log: &dyn LogSource) -> Result<Self, LogError> {
        Ok(Self::up_to(log.head().await?))
    }

    /// Shows progress up to this position.
    pub(super) fn up_to(last: Position) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} commits, {eta} to go");
        Self(ProgressBar::new(last.0).with_style(style.expect("a fixed template")))
    }

    /// Shows progress without a known end.
    pub(super) fn without_end() -> Self {
        let style = ProgressStyle::with_template("{spinner} {pos} commits");
        Self(ProgressBar::new_spinner().with_style(style.expect("a fixed template")))
    }

    pub(super) fn reached(&self, position: Position) {
        self.0.set_position(position.0);
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
