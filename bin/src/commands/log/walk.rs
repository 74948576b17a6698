//! Reading a whole log, with a progress bar on a terminal.

use application::{
    ports::{EventLog, LogError, Position},
    transfer::{self, Broken, Summary},
};
use indicatif::{ProgressBar, ProgressStyle};

/// Checks every record up to the end.
pub(super) async fn to_the_end(log: &dyn EventLog) -> Result<Summary, Broken<LogError>> {
    let progress = match Progress::start(log).await {
        Ok(progress) => progress,
        Err(error) => return Err(Broken { sound: Summary::default(), error }),
    };
    transfer::walk(log, async |record, _| {
        progress.at(record.position);
        Ok(())
    })
    .await
}

/// How far a command has come. Shown on a terminal only, and gone when the command has ended.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// On the way to the end of this log.
    pub(super) async fn start(log: &dyn EventLog) -> Result<Self, LogError> {
        Ok(Self::up_to(log.head().await?))
    }

    /// On the way to this position.
    pub(super) fn up_to(last: Position) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} commits, {eta} to go");
        Self(ProgressBar::new(last.0).with_style(style.expect("a fixed template")))
    }

    /// On the way to an end that nobody knows yet.
    pub(super) fn open_end() -> Self {
        let style = ProgressStyle::with_template("{spinner} {pos} commits");
        Self(ProgressBar::new_spinner().with_style(style.expect("a fixed template")))
    }

    pub(super) fn at(&self, position: Position) {
        self.0.set_position(position.0);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
