//! A log in one SQLite file, one row per commit, for those who like to look at their data with common tools.
//!
//! Reading order: this file (what callers see), `sqlite/keeper.rs` (the one thread that writes, and what it does
//! after a fault), `sqlite/opening.rs` (the way to an open log), `sqlite/engine.rs` and `sqlite/reader.rs` (what is
//! asked of SQLite), `sqlite/trouble.rs` (what its errors mean), `sqlite/shared.rs` (what passes between threads),
//! `sqlite/files.rs` (the files around it). What a failed sync means is in `distrust.rs`, beside this file.

mod engine;
mod files;
mod keeper;
mod opening;
mod reader;
mod remains;
mod shared;
#[cfg(test)]
mod tests;
mod trouble;

use std::{
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, Position, ReadBound, Record, StoredRecord, Version,
};
use async_trait::async_trait;
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    task, time,
};

pub use remains::SqliteRemains;

use files::Opening;
use keeper::Keeper;
use shared::{Request, Shared};

use super::disk;

/// Appends that may wait. There is one writer per node, so one is the rule.
const QUEUE_MAX: usize = 16;

/// A log in a SQLite file. Holds the file until it is dropped; dropping waits until everything is closed.
#[derive(Debug)]
pub struct SqliteLog {
    shared: Arc<Shared>,
    /// `None` only while the log is being dropped.
    requests: Option<mpsc::Sender<Request>>,
    keeper: Option<JoinHandle<()>>,
}

impl SqliteLog {
    /// Opens the log in the file `path`, and makes one if there is none. Blocks while it does so.
    ///
    /// Refuses, with one sentence for the operator, a log that is in use, cannot be written to, or has lost
    /// something, and a file that is no log. Call it within an async runtime, or a limit on file sizes ends the
    /// process when it is reached.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        Self::start(path.as_ref(), Opening::OrCreate)
    }

    /// Opens the log in the file `path` if there is one, for tools that look into it.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, LogError> {
        Self::start(path.as_ref(), Opening::Existing)
    }

    fn start(path: &Path, opening: Opening) -> Result<Self, LogError> {
        disk::survive_the_file_size_limit();
        let path = path.to_path_buf();
        let waiting = runtime::Builder::new_current_thread().enable_time().build();
        let waiting = waiting.map_err(|error| no_thread(&error))?;
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let (opened, outcome) = std::sync::mpsc::channel();
        let keeper = thread::Builder::new().name("petstore-log".into()).spawn(move || {
            match Keeper::open(&path, opening) {
                Ok(keeper) => {
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
            Ok(Ok(shared)) => Ok(Self { shared, requests: Some(requests), keeper: Some(keeper) }),
            Ok(Err(error)) => {
                // Whoever tries again at once finds the file free.
                let _ = keeper.join();
                Err(error)
            }
            Err(_) => Err(stopped()),
        }
    }
}

#[async_trait]
impl EventLog for SqliteLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        let (reply, outcome) = oneshot::channel();
        let requests = self.requests.as_ref().expect("only dropping takes the queue away");
        let request = Request { expected, record: record.clone(), reply };
        requests.send(request).await.map_err(|_| AppendError::Closed(stopped()))?;
        outcome.await.map_err(|_| AppendError::Closed(stopped()))?
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let shared = self.shared.clone();
        // SQLite reads from disk, so not on a thread that others wait for.
        task::spawn_blocking(move || shared.read(after, bound)).await.map_err(|_| stopped())?
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.shared.head()
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        let mut heads = self.shared.heads();
        // Running out of patience is as good an end as any: waiting is only a hint.
        let _ = time::timeout(patience, heads.wait_for(|head| *head > position)).await;
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.shared.durability()
    }
}

impl Drop for SqliteLog {
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
