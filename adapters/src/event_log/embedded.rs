//! A log in files on this machine, with any engine that implements [`Engine`].
//!
//! An embedded engine stores and reads records; everything else is written here, once: the thread that owns the
//! engine and its queue, reopening after an error, the high-water mark, the free space that is kept, and distrust of
//! files after a failed sync.
//!
//! Reading order: this file (what callers see), `engine` (what an engine implements), `log_thread` (the thread
//! that writes, and what it does after an error), `opening` (the checks before anything is served), `shared`
//! (what other threads see). Then the parts: `layout` (where each file is), `open_files` (whether it is still
//! there), `high_water_mark`, `failed_sync`, `space`, `panics`, `reading`, `read_only` (a log that is
//! only read), and `salvage` (reading a store that can no longer be opened).

mod copy;
mod engine;
mod failed_sync;
mod high_water_mark;
mod io_error;
mod layout;
mod log_thread;
mod open_files;
mod opening;
mod panics;
mod read_only;
mod reading;
mod salvage;
mod shared;
mod space;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    fmt,
    path::Path,
    pin::pin,
    sync::{Arc, mpsc::RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Duration,
};

use application::ports::{
    AppendError, Durability, EventLog, Fault, LogError, LogSource, Position, ReadBound, Record, StorageStats,
    StoredRecord, Version,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{
    runtime::{self, Runtime},
    sync::{mpsc, oneshot},
    task, time,
};

pub use copy::StoreCopy;
pub use engine::{CloseMode, Engine, open_copy};
pub use io_error::io_error;
pub use layout::{Layout, sync_files};
pub use read_only::ReadOnlyLog;
pub use reading::{Records, Visit, damaged};
pub use salvage::FoundRecords;

pub(crate) use high_water_mark::check_nothing_is_lost;
pub(crate) use opening::{check, close};
pub(crate) use panics::{one_line, silence_panics};
pub(crate) use reading::read_within;

use super::{SalvagedLog, check_size};
use high_water_mark::HighWaterMark;
use log_thread::{LogThread, QueuedAppend};
use shared::SharedEngine;

/// The largest record: far more than the writer ever makes, and little enough to be held in memory a few times.
pub const RECORD_MAX: usize = 8 * 1024 * 1024;
/// Appends that may wait. There is one writer per node, so one is the rule.
const QUEUE_MAX: usize = 16;
/// How long an answer may take before the engine is told to [`unblock`](Engine::unblock) its callers.
const UNBLOCK_DELAY: Duration = Duration::from_secs(1);
/// How long dropping a log waits until it is closed: longer than the service does, which then exits with an error. Nothing
/// that was acknowledged depends on it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// A log on an embedded engine. Holds its store until it is dropped; dropping blocks until everything is closed, but not
/// for ever: a disk that hangs must not keep the process alive.
pub struct EmbeddedLog<E: Engine> {
    shared: Arc<SharedEngine<E>>,
    /// `None` only while the log is being dropped.
    requests: Option<mpsc::Sender<QueuedAppend>>,
    owner: Option<JoinHandle<()>>,
    /// Disconnected when the thread has closed the log.
    closed: Closed,
}

/// A receiver that is never sent anything, behind a lock because logs are shared between threads.
type Closed = Mutex<std::sync::mpsc::Receiver<()>>;

impl<E: Engine> EmbeddedLog<E> {
    /// Opens the store at `path`, and creates it if there is none. Blocks while it does so.
    ///
    /// Refuses, with one sentence for the operator, a store that is in use, cannot be written to, or has lost
    /// something. Call it within an async runtime, or a limit on file sizes ends the process when it is reached.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        io_error::survive_the_file_size_limit();
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let (opened, outcome) = std::sync::mpsc::channel();
        let (closing, closed) = std::sync::mpsc::channel::<()>();
        let path = path.as_ref().to_path_buf();
        let owner = thread::Builder::new().name("petstore-log".into()).spawn(move || {
            // Dropped last, however the thread ends.
            let _closing = closing;
            match open_owner(&path) {
                Ok((owner, runtime)) => {
                    // The caller waits for this very message.
                    let _ = opened.send(Ok(owner.shared()));
                    owner.run(&runtime, queue);
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
        });
        let owner = owner.map_err(|error| no_thread(&error))?;
        match outcome.recv() {
            Ok(Ok(shared)) => {
                let (requests, owner) = (Some(requests), Some(owner));
                Ok(Self { shared, requests, owner, closed: Mutex::new(closed) })
            }
            Ok(Err(error)) => {
                // A caller that tries again at once finds the store free.
                let _ = owner.join();
                Err(error)
            }
            Err(_) => Err(stopped()),
        }
    }

    /// Opens the store at `path` like [`open`](Self::open), but creates none.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let layout = E::layout(path.as_ref());
        if HighWaterMark::read(&layout.mark)?.is_none() && !E::exists(&layout)? {
            return Err(LogError::new(Fault::AnotherLog, layout.missing().detail));
        }
        Self::open(path)
    }

    /// Opens the store at `path`, if there is one, to read it only. Blocks while it does so.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<ReadOnlyLog, LogError> {
        ReadOnlyLog::open::<E>(path.as_ref())
    }

    /// Looks for everything that can still be read of the store at `path`. Blocks while it does so.
    pub fn salvage(path: impl AsRef<Path>) -> Result<SalvagedLog, LogError> {
        salvage::find::<E>(path.as_ref())
    }

    /// Waits for an answer that depends on the engine, which may need a reminder after an error.
    async fn unblocking<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        loop {
            match time::timeout(UNBLOCK_DELAY, &mut answer).await {
                Ok(answer) => return answer,
                Err(_elapsed) => self.shared.unblock(),
            }
        }
    }

    /// Why a request that was taken never got an answer.
    fn no_outcome(&self) -> LogError {
        if self.has_stopped() { stopped() } else { self.shared.why_closed() }
    }

    /// Whether the thread has ended, which it does only when even restarting it has failed.
    fn has_stopped(&self) -> bool {
        self.owner.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

fn open_owner<E: Engine>(path: &Path) -> Result<(LogThread<E>, Runtime), LogError> {
    let runtime = runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| no_thread(&error))?;
    Ok((LogThread::open(path)?, runtime))
}

#[async_trait]
impl<E: Engine> LogSource for EmbeddedLog<E> {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let shared = self.shared.clone();
        // Engines read from disk, so not on a thread that others wait for.
        self.unblocking(task::spawn_blocking(move || shared.read(after, bound)))
            .await
            .map_err(|_| stopped())?
    }

    async fn head(&self) -> Result<Position, LogError> {
        if self.has_stopped() { Err(stopped()) } else { self.shared.head() }
    }

    async fn wait_for(&self, position: Position, timeout: Duration) -> Result<(), LogError> {
        let mut heads = self.shared.head.subscribe();
        // A timeout is no error: waiting is only a hint.
        let _ = time::timeout(timeout, heads.wait_for(|head| *head > position)).await;
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.shared.durability.clone()
    }

    fn storage_stats(&self) -> StorageStats {
        self.shared.storage_stats()
    }
}

#[async_trait]
impl<E: Engine> EventLog for EmbeddedLog<E> {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        check_size(record, RECORD_MAX)?;
        // The thread may be busy opening the log again.
        self.head().await.map_err(AppendError::Closed)?;
        let (reply, outcome) = oneshot::channel();
        let requests = self.requests.as_ref().expect("only dropping takes the queue away");
        let request = QueuedAppend { expected, record: record.clone(), reply };
        requests.send(request).await.map_err(|_| AppendError::Closed(stopped()))?;
        self.unblocking(outcome).await.map_err(|_| AppendError::Closed(self.no_outcome()))?
    }

    fn record_limit(&self) -> usize {
        RECORD_MAX
    }
}

impl<E: Engine> Drop for EmbeddedLog<E> {
    fn drop(&mut self) {
        self.requests = None;
        let Some(owner) = self.owner.take() else { return };
        match self.closed.get_mut().recv_timeout(CLOSE_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("the log could not be closed within {CLOSE_TIMEOUT:?}, but nothing is lost");
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                // A thread that panicked has ended already; there is nobody left to tell.
                let _ = owner.join();
            }
        }
    }
}

impl<E: Engine> fmt::Debug for EmbeddedLog<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EmbeddedLog").field("head", &self.shared.head()).finish_non_exhaustive()
    }
}

fn stopped() -> LogError {
    LogError::new(Fault::Stopped, "the thread of the log has ended unexpectedly; restart the service")
}

fn no_thread(error: &std::io::Error) -> LogError {
    LogError::new(Fault::CannotOpen, format!("the log cannot start its thread: {error}"))
}
