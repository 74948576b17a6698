//! The thread that owns the engine: the only one that writes, and the one that opens the log again after an error.

use std::{
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use application::{
    Backoff,
    ports::{AppendError, Fault, LogError, Position, Record, StorageStats, Version},
};
use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
    time,
};

use super::{
    engine::{CloseMode, Engine},
    failed_sync,
    io_error::io_error,
    open_files::OpenFiles,
    opening::{self, LockedStore, OpenedEngine},
    panics,
    shared::SharedEngine,
    space,
};

/// How often the mark is synced while commits come in, and how long after the last one.
const MARK_SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How often an idle log checks whether its files are still there, and a full one whether there is space.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the files and the free space are measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before the log is opened again.
const REOPEN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4));

/// A caller that waits for its record to be stored.
pub(super) struct QueuedAppend {
    pub(super) expected: Version,
    pub(super) record: Record,
    pub(super) reply: oneshot::Sender<Result<Position, AppendError>>,
}

/// The owner of a store. Everything here blocks, on a thread of its own.
pub(super) struct LogThread<E> {
    store: LockedStore,
    /// Empty while the engine is closed.
    files: OpenFiles,
    mark_synced: Instant,
    measured: Instant,
    /// Whether anything was created or stored. Otherwise everything stays as it is, damage above all.
    changed: bool,
    state: ThreadState,
    shared: Arc<SharedEngine<E>>,
}

/// Whether records are taken, named by what happens next.
#[derive(Debug, Clone, Copy)]
enum ThreadState {
    /// Take them.
    Open,
    /// Look whether there is room again.
    Full,
    /// Open the log again at the given time. So many attempts have failed.
    Failed { retry_at: Instant, failures: u32 },
    /// Nothing helps but an operator.
    Lost,
}

impl<E: Engine> LogThread<E> {
    /// Opens the store at `path` and checks that it has lost nothing.
    pub(super) fn open(path: &Path) -> Result<Self, LogError> {
        let store = opening::open_store::<E>(path)?;
        let OpenedEngine { engine, last, files } = opening::open_engine(&store)?;
        let shared = Arc::new(SharedEngine::new(engine, &store.layout, last.position));
        let changed = store.is_new;
        let now = Instant::now();
        let mut owner =
            Self { store, files, mark_synced: now, measured: now, changed, state: ThreadState::Open, shared };
        owner.continue_from(last)?;
        owner.create_ballast();
        owner.measure();
        Ok(owner)
    }

    pub(super) fn shared(&self) -> Arc<SharedEngine<E>> {
        self.shared.clone()
    }

    /// Serves until nobody can ask any more, then closes the log. A panic closes it too, but then it is opened again.
    pub(super) fn run(mut self, runtime: &Runtime, mut requests: mpsc::Receiver<QueuedAppend>) {
        loop {
            let serve = AssertUnwindSafe(|| self.serve(runtime, &mut requests));
            match panic::catch_unwind(serve) {
                Ok(()) => return self.close(),
                Err(panic) => {
                    let detail = format!("the thread of the log panicked ({})", panics::message(&*panic));
                    self.fail(&LogError::new(Fault::WriteFailed, detail), 1);
                }
            }
        }
    }

    fn serve(&mut self, runtime: &Runtime, requests: &mut mpsc::Receiver<QueuedAppend>) {
        loop {
            let next = runtime.block_on(async {
                match self.next_maintenance() {
                    Some(at) => time::timeout_at(at.into(), requests.recv()).await,
                    None => Ok(requests.recv().await),
                }
            });
            match next {
                Ok(Some(request)) => {
                    let outcome = self.append(request.expected, &request.record);
                    // The caller may have gone away; the record is stored all the same.
                    let _ = request.reply.send(outcome);
                }
                Ok(None) => return,
                Err(_elapsed) => self.check_idle_log(),
            }
            self.run_maintenance();
            if self.measured.elapsed() >= MEASURE_INTERVAL {
                self.measure();
            }
        }
    }

    /// Measures the files and the free space here, because nobody else may wait for the disk.
    fn measure(&mut self) {
        let layout = &self.store.layout;
        let space = space::free_and_reserved(&layout.directory).ok();
        let files = E::files(layout).unwrap_or_default();
        let bytes = files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        *self.shared.storage_stats.write() = StorageStats {
            sync_micros: None,
            log_bytes: Some(bytes),
            disk_free: space.map(|(free, _)| free),
            disk_reserved: space.map(|(_, reserved)| reserved),
        };
        self.measured = Instant::now();
    }

    /// Notices that the files are gone before a commit does.
    fn check_idle_log(&mut self) {
        match self.state {
            ThreadState::Open => drop(self.close_if_files_missing()),
            ThreadState::Full | ThreadState::Failed { .. } | ThreadState::Lost => {}
        }
    }

    fn append(&mut self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        if let Some(error) = self.shared.closed.read().clone() {
            return Err(AppendError::Closed(error));
        }
        if expected != self.store.mark.mark() {
            return Err(AppendError::Conflict);
        }
        if let Err(error) = space::check_room(&self.store.layout.directory, record.bytes.len()) {
            let closed = self.close_if_files_missing().unwrap_or_else(|| self.stop(ThreadState::Full, error));
            return Err(AppendError::Closed(closed));
        }
        let at = Version::at(expected.position.next(), record.id);
        match self.store(at, record) {
            Ok(()) => {
                self.shared.head.send_replace(at.position);
                Ok(at.position)
            }
            // The engine refused it before it wrote anything.
            Err(error) if matches!(error.fault, Fault::Unreachable | Fault::TooLarge) => {
                Err(AppendError::NotStored(error))
            }
            Err(error) => Err(AppendError::Closed(self.fail(&error, 1))),
        }
    }

    fn store(&mut self, at: Version, record: &Record) -> Result<(), LogError> {
        self.changed = true;
        let begun = Instant::now();
        let written = self.with_engine("writing to the log", |engine| engine.append(at.position, record));
        self.shared.sync_micros.observe_micros(begun.elapsed());
        written?;
        self.store.mark.raise(at).map_err(io_error("writing the high-water mark"))?;
        // Checked after the sync, so that a commit which began after a deletion is never acknowledged.
        self.files.check()
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

    /// When there is something to do even if nobody asks.
    fn next_maintenance(&self) -> Option<Instant> {
        match self.state {
            ThreadState::Open if self.store.mark.is_synced() => Some(Instant::now() + CHECK_INTERVAL),
            ThreadState::Open => Some(self.mark_synced + MARK_SYNC_INTERVAL),
            ThreadState::Full => Some(Instant::now() + CHECK_INTERVAL),
            ThreadState::Failed { retry_at, .. } => Some(retry_at),
            ThreadState::Lost => None,
        }
    }

    fn run_maintenance(&mut self) {
        match self.state {
            ThreadState::Open => {
                if let Err(error) = self.maintain() {
                    self.fail(&error, 1);
                }
            }
            ThreadState::Full => {
                if self.close_if_files_missing().is_none()
                    && space::check_room_again(&self.store.layout.directory).is_ok()
                {
                    self.resume();
                }
            }
            ThreadState::Failed { retry_at, failures } if retry_at <= Instant::now() => self.reopen(failures),
            ThreadState::Failed { .. } | ThreadState::Lost => {}
        }
    }

    fn maintain(&mut self) -> Result<(), LogError> {
        if !self.store.mark.is_synced() && self.mark_synced.elapsed() >= MARK_SYNC_INTERVAL {
            self.store.mark.sync().map_err(io_error("syncing the high-water mark"))?;
            self.mark_synced = Instant::now();
        }
        self.with_engine("maintaining the log", Engine::maintain)
    }

    /// Takes no more records, and tells everybody who asks why.
    fn stop(&mut self, state: ThreadState, error: LogError) -> LogError {
        self.state = state;
        *self.shared.closed.write() = Some(error.clone());
        error
    }

    /// Stops for good if the files are gone: whatever else has failed, that is the reason, and it does not pass.
    fn close_if_files_missing(&mut self) -> Option<LogError> {
        let gone = self.files.check().err().filter(|error| error.fault == Fault::FilesMissing)?;
        Some(self.stop(ThreadState::Lost, gone))
    }

    /// Closes the log after an error, until it was opened again.
    fn fail(&mut self, error: &LogError, failures: u32) -> LogError {
        if let Some(gone) = self.close_if_files_missing() {
            return gone;
        }
        failed_sync::write_marker_if_possible(&self.store.layout.not_synced);
        let detail = format!("{error}; the log reopens automatically once that works");
        let state = ThreadState::Failed { retry_at: Instant::now() + REOPEN.delay(failures), failures };
        self.stop(state, LogError::new(error.fault, detail))
    }

    /// Opens the log again, unless the disk still fails: then the old engine goes on serving reads.
    fn reopen(&mut self, failures: u32) {
        if self.close_if_files_missing().is_some() {
            return;
        }
        let layout = &self.store.layout;
        space::make_room_to_open(&layout.directory, &layout.ballast);
        let writable = failed_sync::write_marker(&layout.not_synced);
        let writable = writable.map_err(io_error("opening the log again"));
        match writable.and_then(|()| self.replace_engine()) {
            Ok(()) => match space::check_room_again(&self.store.layout.directory) {
                Ok(()) => self.resume(),
                Err(error) => {
                    self.stop(ThreadState::Full, error);
                }
            },
            // Neither damaged nor lost files come back by themselves.
            Err(error) if matches!(error.fault, Fault::Damaged | Fault::FilesMissing) => {
                self.stop(ThreadState::Lost, error);
            }
            Err(error) => {
                self.fail(&error, failures + 1);
            }
        }
    }

    fn replace_engine(&mut self) -> Result<(), LogError> {
        // An engine may remove files of its own as it closes.
        self.files = OpenFiles::default();
        // What it has cached goes with it. It failed before, so that it fails to close is no news.
        self.close_engine(CloseMode::LeaveFiles).unwrap_or_else(|error| tracing::debug!("{error}"));
        self.store.mark.settle().map_err(io_error("writing the high-water mark"))?;
        let OpenedEngine { engine, last, files } = opening::open_engine(&self.store)?;
        self.files = files;
        *self.shared.engine.write() = Some(engine);
        self.continue_from(last)
    }

    /// Takes note of everything the log holds, which is durable by now.
    fn continue_from(&mut self, last: Version) -> Result<(), LogError> {
        let mark = &mut self.store.mark;
        if last != mark.mark() {
            let raised = mark.raise(last).and_then(|()| mark.sync());
            raised.map_err(io_error("writing the high-water mark"))?;
        }
        self.shared.head.send_replace(last.position);
        Ok(())
    }

    fn resume(&mut self) {
        self.state = ThreadState::Open;
        *self.shared.closed.write() = None;
        self.create_ballast();
    }

    fn create_ballast(&self) {
        space::create_ballast(&self.store.layout.directory, &self.store.layout.ballast);
    }

    fn close(mut self) {
        let closed = match self.state {
            ThreadState::Open | ThreadState::Full if self.changed => self
                .store
                .mark
                .settle()
                .map_err(io_error("writing the high-water mark"))
                .and_then(|()| self.close_engine(CloseMode::Checkpoint)),
            ThreadState::Open | ThreadState::Full => self.close_engine(CloseMode::LeaveFiles),
            // The next start looks at everything anyway.
            ThreadState::Failed { .. } | ThreadState::Lost => Ok(()),
        };
        if let Err(error) = closed {
            failed_sync::write_marker_if_possible(&self.store.layout.not_synced);
            tracing::warn!("the log could not be closed cleanly, but nothing is lost: {error}");
        }
        self.close_engine(CloseMode::LeaveFiles).unwrap_or_else(|error| tracing::debug!("{error}"));
    }

    fn close_engine(&self, mode: CloseMode) -> Result<(), LogError> {
        // Waits for readers, and keeps them waiting no longer than that.
        let engine = self.shared.engine.write().take();
        engine.map_or(Ok(()), |engine| opening::close(engine, mode))
    }
}
