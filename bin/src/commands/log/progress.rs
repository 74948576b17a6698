//! Progress bars of the log commands. They appear on a terminal only.

use application::{
    log::commit::Commit,
    ports::{EventLog, LogError, LogSource, Position},
    transfer::{self, CopyError, Tally},
};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// Reads and checks every record, shows the progress, and passes each commit to `visit`.
pub(super) async fn check_all(
    log: &dyn LogSource,
    tally: &mut Tally,
    mut visit: impl FnMut(&Commit),
) -> Result<(), LogError> {
    let progress = through(log, tally).await?;
    transfer::walk(log, tally, async |_, commit| {
        progress.set_position(commit.position.0);
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
    let progress = through(from, tally).await?;
    transfer::copy(from, to, tally, |commit| progress.set_position(commit.position.0)).await
}

/// A progress bar up to the end of the tally or the head of this log.
pub(super) async fn through(log: &dyn LogSource, tally: &Tally) -> Result<ProgressBar, LogError> {
    let head = log.head().await?;
    Ok(up_to(tally.end.map_or(head, |end| end.min(head))))
}

/// A progress bar up to this position. It disappears when it is dropped.
pub(super) fn up_to(last: Position) -> ProgressBar {
    styled(ProgressBar::new(last.0), "{bar:40} {pos}/{len} commits, {eta} to go")
}

/// A progress bar without a known end.
pub(super) fn without_end() -> ProgressBar {
    styled(ProgressBar::new_spinner(), "{spinner} {pos} commits")
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a fixed template");
    bar.with_style(style).with_finish(ProgressFinish::AndClear)
}
