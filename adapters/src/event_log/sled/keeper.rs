//! The thread that owns sled: the only one that writes, and the one that opens the log again after a fault.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use application::ports::{AppendError, Fault, LogError, Position, Record, Version};
use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
    time,
};

use super::{
    folder::Folder,
    opening::{self, Opening},
    shared::Shared,
};
use crate::event_log::{
    disk::io_trouble,
    distrust,
    high_water::{HighWater, Mark},
    space,
};

/// How often the mark is synced while commits come in, and how long after the last one.
const MARK_SYNC_PAUSE: Duration = Duration::from_secs(1);
/// The pause before the log is opened again; it doubles with each failure.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(4);

/// A caller that waits for its record to be stored.
pub(super) struct Request {
    pub(super) expected: Version,
    pub(super) record: Record,
    pub(super) reply: oneshot::Sender<Result<Position, AppendError>>,
}

/// The owner of a store. Everything here blocks, on a thread of its own.
pub(super) struct Keeper {
    folder: Folder,
    mark: HighWater,
    mark_synced: Instant,
    trouble: Option<Trouble>,
    shared: Arc<Shared>,
}

/// Why nothing is written, named by what is done about it.
enum Trouble {
    /// Look whether there is room again.
    NoRoom,
    /// Open the log again at the given time, with a longer pause next time.
    Failed { again_at: Instant, pause: Duration },
    /// Nothing helps but an operator.
    Lost,
}

impl Keeper {
    /// Opens the store at `path` and checks that it has lost nothing.
    pub(super) fn open(path: &Path, opening: Opening) -> Result<Self, LogError> {
        let (folder, mark) = opening::open_folder(path, opening)?;
        let (engine, tail) = opening::open_engine(&folder, &mark)?;
        let shared = Arc::new(Shared::new(engine, tail.position));
        let mut keeper = Self { folder, mark, mark_synced: Instant::now(), trouble: None, shared };
        keeper.go_on(tail)?;
        match opening {
            Opening::OrCreate => space::take_ballast(keeper.folder.path(), &keeper.folder.ballast()),
            // Who only looks changes nothing that need not change.
            Opening::Existing => {}
        }
        Ok(keeper)
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Serves until nobody can ask any more, then ends cleanly.
    pub(super) fn run(mut self, runtime: &Runtime, mut requests: mpsc::Receiver<Request>) {
        loop {
            let next = runtime.block_on(async {
                match self.next_chore() {
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
                Ok(None) => return self.close(),
                Err(_elapsed) => {}
            }
            self.do_chores();
        }
    }

    fn append(&mut self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        if let Some(error) = self.shared.closed.read().clone() {
            return Err(AppendError::Closed(error));
        }
        if expected != self.mark.mark().version() {
            return Err(AppendError::Conflict);
        }
        if let Err(error) = space::check_room(self.folder.path(), record.bytes.len()) {
            return Err(AppendError::Closed(self.stop(Trouble::NoRoom, error)));
        }
        let mark = Mark { position: expected.position.next(), commit: record.id };
        match self.store(mark, record) {
            Ok(()) => {
                self.shared.head.send_replace(mark.position);
                Ok(mark.position)
            }
            Err(error) => Err(AppendError::Closed(self.fail(&error, REOPEN_PAUSE))),
        }
    }

    fn store(&mut self, mark: Mark, record: &Record) -> Result<(), LogError> {
        let engine = self.shared.engine.read();
        let engine = engine.as_ref().expect("a log that is not closed has its engine");
        engine.append(mark.position, record)?;
        self.mark.raise(mark).map_err(|error| io_trouble("writing the high-water mark", &error))
    }

    /// When there is something to do even if nobody asks.
    fn next_chore(&self) -> Option<Instant> {
        match &self.trouble {
            None if self.mark.is_synced() => None,
            None => Some(self.mark_synced + MARK_SYNC_PAUSE),
            Some(Trouble::NoRoom) => Some(Instant::now() + REOPEN_PAUSE),
            Some(Trouble::Failed { again_at, .. }) => Some(*again_at),
            Some(Trouble::Lost) => None,
        }
    }

    fn do_chores(&mut self) {
        match self.trouble {
            None => self.sync_mark(),
            Some(Trouble::NoRoom) => {
                if space::check_room_again(self.folder.path()).is_ok() {
                    self.resume();
                }
            }
            Some(Trouble::Failed { again_at, pause }) if again_at <= Instant::now() => self.reopen(pause),
            Some(Trouble::Failed { .. } | Trouble::Lost) => {}
        }
    }

    fn sync_mark(&mut self) {
        if self.mark.is_synced() || self.mark_synced.elapsed() < MARK_SYNC_PAUSE {
            return;
        }
        match self.mark.sync() {
            Ok(()) => self.mark_synced = Instant::now(),
            Err(error) => {
                self.fail(&io_trouble("syncing the high-water mark", &error), REOPEN_PAUSE);
            }
        }
    }

    /// Closes the log for writing, and says why to everybody who asks.
    fn stop(&mut self, trouble: Trouble, error: LogError) -> LogError {
        self.trouble = Some(trouble);
        *self.shared.closed.write() = Some(error.clone());
        error
    }

    /// Closes the log after a fault, until it was opened again.
    fn fail(&mut self, error: &LogError, pause: Duration) -> LogError {
        distrust::declare_if_possible(&self.folder.suspicion());
        let detail = format!("{error}; the log is opened again by itself once that works");
        let trouble = Trouble::Failed { again_at: Instant::now() + pause, pause };
        self.stop(trouble, LogError::new(error.fault, detail))
    }

    /// Opens the log again, unless the disk still fails: then the old engine goes on serving reads.
    fn reopen(&mut self, pause: Duration) {
        space::make_room_to_open(self.folder.path(), &self.folder.ballast());
        let writable = distrust::declare(&self.folder.suspicion());
        let writable = writable.map_err(|error| io_trouble("opening the log again", &error));
        match writable.and_then(|()| self.replace_engine()) {
            Ok(()) => match space::check_room_again(self.folder.path()) {
                Ok(()) => self.resume(),
                Err(error) => {
                    self.stop(Trouble::NoRoom, error);
                }
            },
            // Damage does not heal.
            Err(error) if error.fault == Fault::Damaged => {
                self.stop(Trouble::Lost, error);
            }
            Err(error) => {
                self.fail(&error, (2 * pause).min(REOPEN_PAUSE_MAX));
            }
        }
    }

    fn replace_engine(&mut self) -> Result<(), LogError> {
        self.close_engine();
        self.mark.settle().map_err(|error| io_trouble("writing the high-water mark", &error))?;
        let (engine, tail) = opening::open_engine(&self.folder, &self.mark)?;
        *self.shared.engine.write() = Some(engine);
        self.go_on(tail)
    }

    /// Takes note of everything the log holds, which is durable by now.
    fn go_on(&mut self, tail: Mark) -> Result<(), LogError> {
        if tail != self.mark.mark() {
            let raised = self.mark.raise(tail).and_then(|()| self.mark.sync());
            raised.map_err(|error| io_trouble("writing the high-water mark", &error))?;
        }
        self.shared.head.send_replace(tail.position);
        Ok(())
    }

    fn resume(&mut self) {
        self.trouble = None;
        *self.shared.closed.write() = None;
        space::take_ballast(self.folder.path(), &self.folder.ballast());
    }

    fn close(mut self) {
        let settled = match self.trouble {
            None | Some(Trouble::NoRoom) => self.mark.settle(),
            // The next start looks at everything anyway.
            Some(Trouble::Failed { .. } | Trouble::Lost) => Ok(()),
        };
        if let Err(error) = settled {
            tracing::warn!("the high-water mark could not be synced at the end: {error}");
        }
        self.close_engine();
    }

    fn close_engine(&self) {
        // Waits for readers, and keeps them waiting no longer than that.
        let engine = self.shared.engine.write().take();
        if let Some(engine) = engine {
            engine.close();
        }
    }
}
