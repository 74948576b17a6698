//! A log in files on this machine, with any engine that implements [`Engine`].
//!
//! An embedded engine stores and reads records. The mechanism around it is the same for all engines: the thread that
//! owns the engine and its queue, reopening after an error, the high-water mark, reserved disk space, and the
//! comparison of files with the disk after a failed sync.
//!
//! Reading order: this file (the public API), `engine` (the traits that an engine implements), `log_thread` (the thread
//! that writes, and its error handling), `opening` (the checks before a log is served). Then the parts: `layout` (the
//! paths), `open_files` (detects deleted files), `high_water_mark`, `failed_sync`, `space`, `panics`, `read_only` (also
//! for a store that can no longer be opened).

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
mod space;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    fmt,
    path::Path,
    pin::pin,
    sync::{
        Arc,
        mpsc::{self, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use application::{
    Histogram,
    ports::{
        AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, LogSource, Position, ReadBound,
        Record, StorageStats, StoredRecord, Version,
    },
};
use async_trait::async_trait;
use parking_lot::RwLock;
use tokio::{
    sync::{oneshot, watch},
    task, time,
};
use tokio_util::sync::CancellationToken;

pub use engine::{Engine, Records, Visit, damaged, missing};
pub use io_error::io_error;
pub use layout::{IN_USE, Layout, sync_files};
pub use read_only::ReadOnlyLog;

pub(crate) use copy::{StoreCopy, read_around_errors};
pub(crate) use engine::{check, discard, read_within};
pub(crate) use high_water_mark::check_nothing_is_lost;
pub(crate) use panics::{one_line, silence_panics};

use high_water_mark::HighWaterMark;
use log_thread::{LogThread, QueuedAppend};

/// The maximum number of queued appends; further ones are rejected. A node has one writer, so there is rarely more than
/// one.
const QUEUE_MAX: usize = 64;
/// How long a call may take before the engine is asked to [`unblock`](Engine::unblock) its callers.
const UNBLOCK_DELAY: Duration = Duration::from_secs(1);

/// A log on an embedded engine. Holds its store until it is closed or dropped.
pub struct EmbeddedLog<E: Engine> {
    shared: Arc<SharedState<E>>,
    /// `None` once the log is closed. The thread ends when its queue is disconnected and drained.
    requests: RwLock<Option<SyncSender<QueuedAppend>>>,
    /// Cancelled when the thread has ended and the store is released.
    ended: CancellationToken,
}

impl<E: Engine> EmbeddedLog<E> {
    /// Opens the store at `path`, and creates it if it does not exist. Blocks.
    ///
    /// Rejects a store that is in use, cannot be written to, or has lost commits. Call it within an async runtime;
    /// otherwise the process is killed when it reaches a limit on file sizes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        io_error::survive_the_file_size_limit();
        let log_thread = LogThread::<E>::open(path.as_ref())?;
        let shared = log_thread.shared.clone();
        let (requests, queue) = mpsc::sync_channel(QUEUE_MAX);
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let run = move || {
            // Dropped last, even if the thread panics.
            let _guard = guard;
            log_thread.run(&queue);
        };
        thread::Builder::new()
            .name("petstore-log".into())
            .spawn(run)
            .map_err(|error| Fault::CannotOpen.error(format!("cannot start the log thread: {error}")))?;
        Ok(Self { shared, requests: RwLock::new(Some(requests)), ended })
    }

    /// Opens the store at `path` like [`open`](Self::open), but fails if it does not exist.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let layout = E::layout(path.as_ref());
        layout.check_kind()?;
        if HighWaterMark::read(&layout.mark)?.is_none() && !E::exists(&layout)? {
            let detail =
                format!("no store at {}, although this node has applied a log there", layout.path.display());
            return Err(Fault::AnotherLog.error(detail));
        }
        Self::open(path)
    }

    /// Awaits a call that depends on the engine, and unblocks the engine at intervals.
    async fn unblocking<T>(&self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        loop {
            match time::timeout(UNBLOCK_DELAY, &mut call).await {
                Ok(outcome) => return outcome,
                Err(_elapsed) => self.shared.unblock(),
            }
        }
    }
}

#[async_trait]
impl<E: Engine> LogSource for EmbeddedLog<E> {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let shared = self.shared.clone();
        // Engines block on the disk.
        let read = self.unblocking(task::spawn_blocking(move || shared.read(after, bound))).await;
        read.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => Err(panics::read_panicked("reading the log", &*panic)),
            // The runtime is shutting down.
            Err(_cancelled) => Err(stopped()),
        })
    }

    async fn head(&self) -> Result<Position, LogError> {
        if self.ended.is_cancelled() { Err(stopped()) } else { self.shared.head() }
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.shared.head.subscribe()
    }

    fn durability(&self) -> Durability {
        self.shared.durability.clone()
    }

    fn storage_stats(&self) -> StorageStats {
        self.shared.storage_stats.read().clone()
    }
}

#[async_trait]
impl<E: Engine> EventLog for EmbeddedLog<E> {
    /// Stores all records with one sync, or none.
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        // The thread may be busy opening the log again.
        self.head().await.map_err(AppendError::Closed)?;
        let (reply, outcome) = oneshot::channel();
        let request = QueuedAppend { expected, records: records.to_vec(), reply };
        let queued = self.requests.read().as_ref().map(|requests| requests.try_send(request));
        match queued {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_))) => {
                let error = Fault::Unreachable.error("too many appends are queued; try again in a moment");
                return Err(AppendError::NotStored(error));
            }
            Some(Err(TrySendError::Disconnected(_))) | None => return Err(AppendError::Closed(stopped())),
        }
        self.unblocking(outcome).await.unwrap_or_else(|_| {
            // The thread took the append and panicked.
            Err(AppendError::Closed(stopped()))
        })
    }

    async fn close(&self) {
        self.requests.write().take();
        self.unblocking(self.ended.cancelled()).await;
    }
}

impl<E: Engine> fmt::Debug for EmbeddedLog<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EmbeddedLog").field("head", &self.shared.head()).finish_non_exhaustive()
    }
}

const PROMISE: &str = "every acknowledged commit is on the local disk: it survives kill -9 and power cuts, \
                       if the disk honours fsync";

fn durability_of<E: Engine>(engine: &E, layout: &Layout) -> Durability {
    let store = ("store", layout.path.display().to_string());
    let mark = ("high-water mark", "written with every commit, synced every second".to_owned());
    let settings = engine.durability_settings().into_iter().chain([store, mark]);
    Durability {
        engine: E::NAME,
        level: DurabilityLevel::Synced,
        promise: PROMISE.into(),
        settings: settings.map(|(setting, value)| (setting.to_owned(), value)).collect(),
    }
}

/// The state that the log thread shares with other threads.
struct SharedState<E> {
    /// `None` while the log is being reopened.
    engine: RwLock<Option<E>>,
    /// The last position that is durable.
    head: watch::Sender<Position>,
    /// The reason why writes are rejected, if they are.
    closed: RwLock<Option<LogError>>,
    durability: Durability,
    sync_micros: Arc<Histogram>,
    storage_stats: RwLock<StorageStats>,
}

impl<E: Engine> SharedState<E> {
    fn new(engine: E, layout: &Layout, head: Position) -> Self {
        Self {
            durability: durability_of(&engine, layout),
            engine: RwLock::new(Some(engine)),
            head: watch::Sender::new(head),
            closed: RwLock::new(None),
            sync_micros: Arc::new(Histogram::new(Histogram::STORAGE_MICROS)),
            storage_stats: RwLock::default(),
        }
    }

    /// Returns durable records after `after`, within `bound`. Works even after a failed write.
    fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        match &*self.engine.read() {
            // The engine shows a record before it is durable; readers must not see it until then.
            Some(engine) => read_within(engine, after, *self.head.borrow(), bound),
            // It is taken out only while the log is closed.
            None => Err(self.closed.read().clone().unwrap_or_else(stopped)),
        }
    }

    fn head(&self) -> Result<Position, LogError> {
        match &*self.closed.read() {
            Some(error) => Err(error.clone()),
            None => Ok(*self.head.borrow()),
        }
    }

    /// Wakes threads that hang inside the engine.
    fn unblock(&self) {
        // Not `try_read`: it fails while the log thread waits for the lock, perhaps behind the very readers that hang.
        if let Some(engine) = self.engine.try_read_recursive()
            && let Some(engine) = &*engine
        {
            engine.unblock();
        }
    }
}

fn stopped() -> LogError {
    Fault::Stopped.error("the log thread has ended; restart the service")
}
