//! Progress bars of the log commands. They appear on a terminal only.

use application::{
    Digest,
    ports::{EventLog, LogError, Position},
    transfer::{self, Broken, Summary},
};
use indicatif::{ProgressBar, ProgressStyle};

/// Reads and checks every record, and shows the progress.
pub(super) async fn check_all(log: &dyn EventLog) -> Result<Summary, Broken<LogError>> {
    let progress = match Progress::through(log).await {
        Ok(progress) => progress,
        Err(error) => return Err(Broken { sound: Box::default(), error }),
    };
    transfer::walk(log, async |record, _| {
        progress.reached(record.position);
        Ok(())
    })
    .await
}

/// Reads and checks every record, shows the progress, and finds the last position at which the head hash was this one.
pub(super) async fn find_head_hash(
    log: &dyn EventLog,
    head_hash: Digest,
) -> Result<(Summary, Option<Position>), Broken<LogError>> {
    let progress = match Progress::through(log).await {
        Ok(progress) => progress,
        Err(error) => return Err(Broken { sound: Box::default(), error }),
    };
    transfer::find_head_hash(log, head_hash, |position| progress.reached(position)).await
}

/// A progress bar. It disappears when it is dropped.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// From the start to the head of this log.
    pub(super) async fn through(log: &dyn EventLog) -> Result<Self, LogError> {
        Ok(Self::up_to(log.head().await?))
    }

    /// From the start to this position.
    pub(super) fn up_to(last: Position) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} commits, {eta} to go");
        Self(ProgressBar::new(last.0).with_style(style.expect("a fixed template")))
    }

    /// To an end that is not known yet.
    pub(super) fn without_end() -> Self {
        let style = ProgressStyle::with_template("{spinner} {pos} commits");
        Self(ProgressBar::new_spinner().with_style(style.expect("a fixed template")))
    }

    pub(super) fn reached(&self, position: Position) {
        self.0.set_position(position.0);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
