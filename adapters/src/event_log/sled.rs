//! The embedded log: sled in a folder of its own, with what sled does not do added around it.
//!
//! Reading order: this file (what callers see), `keeper` (the one thread that writes, and what it does after
//! a fault), `opening` (the way to an open store) with `../distrust` (why a failed sync is not forgotten),
//! `inspect` and `rehearsal` (why damage is not repaired away), `engine` and `chunks` (what is asked of sled,
//! and how a record lies in it), then `folder`, `guard` and `../space` (the world around).

mod chunks;
mod engine;
mod folder;
mod guard;
mod inspect;
mod keeper;
mod opening;
mod rehearsal;
mod remains;
mod shared;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use application::ports::{
    AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, Position, ReadBound, Record,
    StoredRecord, Version,
};
use async_trait::async_trait;
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    task, time,
};

pub use remains::SledRemains;

use keeper::{Keeper, Request};
use opening::Opening;
use shared::Shared;

use super::disk;

/// The largest record: far more than the writer ever makes, and little enough to be held in memory a few
/// times.
pub const RECORD_MAX: usize = 8 * 1024 * 1024;
/// Appends that may wait. There is one writer per node, so one is the rule.
const QUEUE_MAX: usize = 16;
/// How long an answer may take before sled is reminded of it.
const NUDGE_PAUSE: Duration = Duration::from_secs(1);

/// A log in a folder. Holds the folder until it is dropped; dropping waits until everything is closed.
#[derive(Debug)]
pub struct SledLog {
    path: PathBuf,
    shared: Arc<Shared>,
    /// `None` only while the log is being dropped.
    requests: Option<mpsc::Sender<Request>>,
    keeper: Option<JoinHandle<()>>,
}

impl SledLog {
    /// Opens the store in the folder `path`, and makes one if there is none. Blocks while it does so.
    ///
    /// Refuses, with one sentence for the operator, a store that is in use, cannot be written to, or has lost
    /// something. Call it within an async runtime, or a limit on file sizes ends the process when it is
    /// reached.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        Self::start(path.as_ref(), Opening::OrCreate)
    }

    /// Opens the store in the folder `path` if there is one, for tools that look into it.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, LogError> {
        Self::start(path.as_ref(), Opening::Existing)
    }

    fn start(path: &Path, opening: Opening) -> Result<Self, LogError> {
        disk::survive_the_file_size_limit();
        let path = path.to_path_buf();
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let (opened, outcome) = std::sync::mpsc::channel();
        let keeper = thread::Builder::new().name("petstore-log".into()).spawn({
            let path = path.clone();
            move || match open_keeper(&path, opening) {
                Ok((keeper, waiting)) => {
                    // Who opened the log waits for this very message.
                    let _ = opened.send(Ok(keeper.shared()));
                    keeper.run(&waiting, queue);
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
        });
        let keeper = keeper.map_err(|error| no_thread(&error))?;
        match outcome.recv() {
            Ok(Ok(shared)) => Ok(Self { path, shared, requests: Some(requests), keeper: Some(keeper) }),
            Ok(Err(error)) => {
                // Whoever tries again at once finds the folder free.
                let _ = keeper.join();
                Err(error)
            }
            Err(_) => Err(stopped()),
        }
    }

    /// Waits for an answer that depends on sled, and reminds sled of whoever waits there.
    async fn nudging<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        loop {
            match time::timeout(NUDGE_PAUSE, &mut answer).await {
                Ok(answer) => return answer,
                Err(_elapsed) => self.shared.nudge(),
            }
        }
    }
}

fn open_keeper(path: &Path, opening: Opening) -> Result<(Keeper, runtime::Runtime), LogError> {
    let waiting = runtime::Builder::new_current_thread().enable_time().build();
    let waiting = waiting.map_err(|error| no_thread(&error))?;
    Ok((Keeper::open(path, opening)?, waiting))
}

#[async_trait]
impl EventLog for SledLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        if record.bytes.len() > RECORD_MAX {
            let detail =
                format!("a record of {} bytes is over the limit of {RECORD_MAX}", record.bytes.len());
            return Err(AppendError::NotStored(LogError::new(Fault::TooLarge, detail)));
        }
        // The keeper may be busy opening the log again.
        self.head().await.map_err(AppendError::Closed)?;
        let (reply, outcome) = oneshot::channel();
        let requests = self.requests.as_ref().expect("only dropping takes the queue away");
        let request = Request { expected, record: record.clone(), reply };
        requests.send(request).await.map_err(|_| AppendError::Closed(stopped()))?;
        self.nudging(outcome).await.map_err(|_| AppendError::Closed(stopped()))?
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let shared = self.shared.clone();
        // sled reads from disk, so not on a thread that others wait for.
        self.nudging(task::spawn_blocking(move || shared.read(after, bound))).await.map_err(|_| stopped())?
    }

    async fn head(&self) -> Result<Position, LogError> {
        if self.keeper.as_ref().is_some_and(JoinHandle::is_finished) {
            return Err(stopped());
        }
        match &*self.shared.closed.read() {
            Some(error) => Err(error.clone()),
            None => Ok(*self.shared.head.borrow()),
        }
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        let mut heads = self.shared.head.subscribe();
        // Running out of patience is as good an end as any: waiting is only a hint.
        let _ = time::timeout(patience, heads.wait_for(|head| *head > position)).await;
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "sled",
            level: DurabilityLevel::Synced,
            promise:
                "every acknowledged commit is on this machine's disk: it survives kill -9 and power cuts, as \
                      far as the disk keeps what it says it has synced"
                    .into(),
            facts: vec![
                ("folder".into(), self.path.display().to_string()),
                ("sync".into(), "flush and fdatasync before every acknowledgement".into()),
                ("high-water mark".into(), "written with every commit, synced every second".into()),
            ],
        }
    }
}

impl Drop for SledLog {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(keeper) = self.keeper.take() {
            // It ended by itself if it panicked; there is nobody left to tell.
            let _ = keeper.join();
        }
    }
}

fn stopped() -> LogError {
    LogError::new(Fault::Stopped, "the thread of the log has ended unexpectedly; restart the service")
}

fn no_thread(error: &std::io::Error) -> LogError {
    LogError::new(Fault::CannotOpen, format!("the log gets no thread of its own: {error}"))
}
