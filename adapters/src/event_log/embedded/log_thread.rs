//! The thread that owns the engine: the only thread that writes, and the one that reopens the log after an error.

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use application::{
    Backoff,
    ports::{AppendError, Fault, LogError, Position, Record, StorageStats, Version},
};
use tokio::sync::oneshot;

use super::{
    SharedState,
    engine::{Engine, close, discard},
    failed_sync,
    io_error::io_error,
    open_files::OpenFiles,
    opening::{self, LockedStore},
    panics,
    space::{self, Space},
    stopped,
};

/// The interval at which the high-water mark is synced after commits, files and free space are measured, an idle log
/// checks its files, and a full one the free space.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
const REOPEN: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(4) };

pub(super) struct QueuedAppend {
    pub(super) expected: Version,
    pub(super) records: Vec<Record>,
    pub(super) reply: oneshot::Sender<Result<Position, AppendError>>,
}

/// The state of the thread. All methods block.
pub(super) struct LogThread<E> {
    store: LockedStore,
    /// Empty while the engine is closed.
    files: OpenFiles,
    /// The time of the last maintenance.
    maintained: Instant,
    /// Whether this process has created or stored anything. If not, closing leaves the files unchanged.
    changed: bool,
    state: ThreadState,
    pub(super) shared: Arc<SharedState<E>>,
}

/// Whether the thread accepts records, named by what happens next.
#[derive(Debug, Clone, Copy)]
enum ThreadState {
    /// Accept records.
    Open,
    /// Check again for free space.
    Full,
    /// Reopen the log at the given time, after this many failures in a row.
    Failed { retry_at: Instant, failures: u32 },
    /// Wait for an operator: the files are damaged or missing.
    Lost,
}

impl<E: Engine> LogThread<E> {
    /// Opens the store at `path`, and checks that it is complete.
    pub(super) fn open(path: &Path) -> Result<Self, LogError> {
        let store = opening::open_store::<E>(path)?;
        let opened = opening::open_engine(&store).inspect_err(|error| {
            // A sync of the next startup may succeed, which proves nothing about a failed one.
            if matches!(error.fault, Fault::WriteFailed | Fault::Full) {
                failed_sync::write_marker_if_possible(&store.layout.not_synced);
            }
        });
        let (engine, last, files) = opened?;
        let shared = Arc::new(SharedState::new(engine, &store.layout, last.position));
        // An empty log may be new.
        let changed = last == Version::START;
        let (maintained, state) = (Instant::now(), ThreadState::Open);
        let mut thread = Self { store, files, maintained, changed, state, shared };
        thread.continue_from(last)?;
        space::create_ballast(&thread.store.layout);
        thread.measure();
        Ok(thread)
    }

    /// Runs until the queue is closed, then closes the log.
    pub(super) fn run(mut self, requests: &Receiver<QueuedAppend>) {
        loop {
            let next = match self.next_maintenance() {
                Some(at) => requests.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => requests.recv().map_err(RecvTimeoutError::from),
            };
            match next {
                Ok(request) => {
                    let outcome = self.append(request.expected, &request.records);
                    // The caller may have stopped waiting; the records are stored anyway.
                    let _ = request.reply.send(outcome);
                }
                Err(RecvTimeoutError::Disconnected) => return self.close(),
                // Detects missing files before the next commit.
                Err(RecvTimeoutError::Timeout) if matches!(self.state, ThreadState::Open) => {
                    drop(self.close_if_files_missing());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.run_maintenance();
            if self.maintained.elapsed() >= MAINTENANCE_INTERVAL {
                self.measure();
                self.maintained = Instant::now();
            }
        }
    }

    /// Measures the files and the free space. This thread may block on the disk; readers of the statistics may not.
    fn measure(&self) {
        let layout = &self.store.layout;
        let space = Space::of(&layout.directory).ok();
        let files = E::files(layout).unwrap_or_default();
        let bytes = files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        *self.shared.storage_stats.write() = StorageStats {
            sync_micros: Some(self.shared.sync_micros.clone()),
            log_bytes: Some(bytes),
            disk_free: space.map(|space| space.free),
            disk_reserved: space.map(|space| space.floor),
        };
    }

    fn append(&mut self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        if let Some(error) = self.shared.closed.read().clone() {
            return Err(AppendError::Closed(error));
        }
        if expected != self.store.mark.version {
            return Err(AppendError::Conflict);
        }
        let bytes: usize = records.iter().map(|record| record.bytes.len()).sum();
        let needed = space::AMPLIFICATION * bytes as u64;
        if let Err(error) = space::check_room(&self.store.layout.directory, needed) {
            let closed = self.close_if_files_missing().unwrap_or_else(|| self.stop(ThreadState::Full, error));
            return Err(AppendError::Closed(closed));
        }
        match self.append_and_mark(expected, records) {
            Ok(last) => {
                self.shared.head.send_replace(last.position);
                Ok(last.position)
            }
            // The engine rejected it before it wrote anything.
            Err(error) if matches!(error.fault, Fault::Unreachable | Fault::TooLarge) => {
                Err(AppendError::NotStored(error))
            }
            Err(error) => Err(AppendError::Closed(self.fail(&error, 1))),
        }
    }

    /// Stores the records after `before`, writes the mark, and returns the last of them.
    fn append_and_mark(&mut self, before: Version, records: &[Record]) -> Result<Version, LogError> {
        self.changed = true;
        let first = before.position.next();
        let begun = Instant::now();
        let written = self.with_engine("writing to the log", |engine| engine.append(first, records));
        self.shared.sync_micros.observe_micros(begun.elapsed());
        written?;
        let last = records.iter().fold(before, |version, record| version.then(record.id));
        self.store.mark.raise(last).map_err(io_error("writing the high-water mark"))?;
        // Checked after the sync, so that a commit that began after a deletion is never acknowledged.
        self.files.check().map(|()| last)
    }

    fn with_engine<T>(
        &self,
        doing: &str,
        call: impl FnOnce(&E) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let engine = self.shared.engine.read();
        let engine = engine.as_ref().expect("a log that is open has its engine");
        panics::writing(doing, || call(engine))
    }

    /// The time of the next maintenance, even without requests.
    fn next_maintenance(&self) -> Option<Instant> {
        match self.state {
            ThreadState::Open | ThreadState::Full => Some(self.maintained + MAINTENANCE_INTERVAL),
            ThreadState::Failed { retry_at, .. } => Some(retry_at),
            ThreadState::Lost => None,
        }
    }

    fn run_maintenance(&mut self) {
        match self.state {
            ThreadState::Open => {
                // The probes report a full disk before a client's request fails.
                if let Err(error) = space::check_room(&self.store.layout.directory, 0) {
                    self.close_if_files_missing().unwrap_or_else(|| self.stop(ThreadState::Full, error));
                } else if let Err(error) = self.maintain() {
                    self.fail(&error, 1);
                }
            }
            ThreadState::Full => {
                if self.close_if_files_missing().is_none()
                    && space::check_room(&self.store.layout.directory, space::RESUME_MARGIN).is_ok()
                {
                    self.resume();
                }
            }
            ThreadState::Failed { retry_at, failures } if retry_at <= Instant::now() => self.reopen(failures),
            ThreadState::Failed { .. } | ThreadState::Lost => {}
        }
    }

    fn maintain(&mut self) -> Result<(), LogError> {
        if self.maintained.elapsed() >= MAINTENANCE_INTERVAL {
            self.store.mark.sync().map_err(io_error("syncing the high-water mark"))?;
        }
        self.with_engine("maintaining the log", Engine::maintain)
    }

    /// Stops accepting records. Further appends get this error.
    fn stop(&mut self, state: ThreadState, error: LogError) -> LogError {
        self.state = state;
        *self.shared.closed.write() = Some(error.clone());
        error
    }

    /// Stops permanently if files are missing. This overrides any other error, because a retry cannot help.
    fn close_if_files_missing(&mut self) -> Option<LogError> {
        let gone = self.files.check().err().filter(|error| error.fault == Fault::FilesMissing)?;
        Some(self.stop(ThreadState::Lost, gone))
    }

    /// Stops accepting records after an error, and schedules a reopening.
    fn fail(&mut self, error: &LogError, failures: u32) -> LogError {
        if let Some(gone) = self.close_if_files_missing() {
            return gone;
        }
        failed_sync::write_marker_if_possible(&self.store.layout.not_synced);
        let detail = format!("{error}; the log accepts writes again once the error is resolved");
        let state = ThreadState::Failed { retry_at: Instant::now() + REOPEN.delay(failures), failures };
        self.stop(state, error.fault.error(detail))
    }

    /// Reopens the log. While the disk still fails, the old engine keeps serving reads.
    fn reopen(&mut self, failures: u32) {
        if self.close_if_files_missing().is_some() {
            return;
        }
        space::make_room_to_open(&self.store.layout);
        let writable = failed_sync::write_marker(&self.store.layout.not_synced);
        let writable = writable.map_err(io_error("reopening the log"));
        match writable.and_then(|()| self.replace_engine()) {
            Ok(()) => match space::check_room(&self.store.layout.directory, space::RESUME_MARGIN) {
                Ok(()) => self.resume(),
                Err(error) => {
                    self.stop(ThreadState::Full, error);
                }
            },
            // A retry does not repair damaged or missing files.
            Err(error) if matches!(error.fault, Fault::Damaged | Fault::FilesMissing) => {
                self.stop(ThreadState::Lost, error);
            }
            Err(error) => {
                self.fail(&error, failures + 1);
            }
        }
    }

    fn replace_engine(&mut self) -> Result<(), LogError> {
        // Closing an engine may remove some of its files.
        self.files = OpenFiles::default();
        // Drops the cache of the engine.
        self.discard_engine();
        self.store.mark.settle().map_err(io_error("writing the high-water mark"))?;
        let (engine, last, files) = opening::open_engine(&self.store)?;
        self.files = files;
        *self.shared.engine.write() = Some(engine);
        self.continue_from(last)
    }

    /// Raises the mark to the end of the log, which is durable.
    fn continue_from(&mut self, last: Version) -> Result<(), LogError> {
        let mark = &mut self.store.mark;
        if last != mark.version {
            let raised = mark.raise(last).and_then(|()| mark.sync());
            raised.map_err(io_error("writing the high-water mark"))?;
        }
        self.shared.head.send_replace(last.position);
        Ok(())
    }

    fn resume(&mut self) {
        self.state = ThreadState::Open;
        *self.shared.closed.write() = None;
        space::create_ballast(&self.store.layout);
    }

    fn close(mut self) {
        *self.shared.closed.write() = Some(stopped());
        match self.state {
            ThreadState::Open | ThreadState::Full => {}
            // The next startup checks everything.
            ThreadState::Failed { .. } | ThreadState::Lost => return self.discard_engine(),
        }
        let settled = if self.changed { self.settle() } else { Ok(()) };
        let closed = self.take_engine().map_or(Ok(()), close);
        if let Err(error) = settled.and(closed) {
            failed_sync::write_marker_if_possible(&self.store.layout.not_synced);
            tracing::warn!(
                target: "petstore::storage",
                %error,
                "closing the log failed; every acknowledged commit is durable"
            );
        }
    }

    fn settle(&mut self) -> Result<(), LogError> {
        self.store.mark.settle().map_err(io_error("writing the high-water mark"))?;
        self.with_engine("closing the log", Engine::checkpoint)
    }

    fn discard_engine(&self) {
        if let Some(engine) = self.take_engine() {
            discard(engine);
        }
    }

    /// Waits for readers. New readers wait only until the engine is taken out.
    fn take_engine(&self) -> Option<E> {
        self.shared.engine.write().take()
    }
}
