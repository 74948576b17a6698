//! How the log gets into a node: replay at the start, catching up before a decision is made again, and
//! following a log that other nodes write to. Written once for every engine.

use std::{sync::Arc, time::Duration};

use tokio::time::{self, Instant};

use crate::{
    codec,
    health::Monitor,
    ports::{EventLog, Fault, LogError, Position, ReadBound, StoredRecord},
    projection::Projection,
};

/// How long to wait for news before looking whether the log is still in sight.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// How long a node may go without a confirmed head before it calls itself not ready.
const BLIND_MAX: Duration = Duration::from_secs(5);

/// Brings commits from the log into the projection.
#[derive(Clone)]
pub(crate) struct Follower {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) projection: Arc<Projection>,
    pub(crate) monitor: Arc<Monitor>,
}

impl Follower {
    /// Applies everything the log has beyond what was applied so far.
    pub(crate) async fn catch_up(&self) -> Result<(), LogError> {
        loop {
            let records = self.log.read(self.projection.version().position, ReadBound::BATCH).await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in &records {
                self.projection.apply(&decode(record)?)?;
            }
            // A long replay must not keep other tasks of this worker waiting.
            tokio::task::yield_now().await;
        }
    }

    /// Catches up after the log was out of sight. If it is no longer the log that was read before, everything
    /// is dropped and replayed, and nothing is read meanwhile: events that no longer exist must not be served.
    pub(crate) async fn rejoin(&self) -> Result<(), LogError> {
        self.log.head().await?;
        if let Some(diverged) = self.divergence().await? {
            self.monitor.reads_stopped(&diverged);
            self.projection.reset();
        }
        self.catch_up().await?;
        self.monitor.reads_go_on();
        Ok(())
    }

    /// Keeps up with a log that others write to, for as long as it is polled.
    pub(crate) async fn follow(self) {
        let mut confirmed = Instant::now();
        let mut in_sight = true;
        loop {
            let news = if in_sight { self.news().await } else { self.rejoin().await };
            in_sight = news.is_ok();
            match news {
                Ok(()) => {
                    confirmed = Instant::now();
                    self.monitor.in_sight();
                }
                Err(error) => {
                    if error.fault != Fault::Unreachable || confirmed.elapsed() > BLIND_MAX {
                        self.monitor.out_of_sight(&error);
                    }
                    time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn news(&self) -> Result<(), LogError> {
        self.log.wait_beyond(self.projection.version().position, PATIENCE).await?;
        if self.log.head().await? > self.projection.version().position {
            self.catch_up().await?;
        }
        Ok(())
    }

    /// How the log differs, at the last applied position, from what was applied.
    async fn divergence(&self) -> Result<Option<LogError>, LogError> {
        let version = self.projection.version();
        let Some(applied) = version.commit else { return Ok(None) };
        let before = Position(version.position.0 - 1);
        let found = self.log.read(before, ReadBound::ONE).await?.first().map(decode).transpose()?;
        let what = match found {
            Some(commit) if commit.id == applied => return Ok(None),
            Some(_) => "holds another commit",
            None => "no longer holds a commit",
        };
        let detail = format!("the log {what} at position {}: replaying it from the start", version.position);
        Ok(Some(LogError::new(Fault::Diverged, detail)))
    }
}

/// Reads a stored record and checks that it stands where it says.
pub(crate) fn decode(record: &StoredRecord) -> Result<codec::Commit, LogError> {
    let commit = codec::decode(&record.bytes).map_err(|error| error.at(record.position))?;
    if commit.position == record.position {
        return Ok(commit);
    }
    let detail =
        format!("position {} holds the commit that was written at {}", record.position, commit.position);
    Err(LogError::new(Fault::Damaged, detail))
}
