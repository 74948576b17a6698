//! The thread that owns the database: the only one that writes, and the one that opens the log again after a
//! fault.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use application::ports::{AppendError, Fault, LogError, Position, Record};
use rusqlite::ErrorCode;
use tokio::{runtime::Runtime, sync::mpsc, time};

use super::{
    engine::Engine,
    files::{Files, Opening},
    opening::{Opened, open_engine, open_mark},
    shared::{Request, Shared},
    trouble::{explain, io_trouble},
};
use crate::event_log::high_water::{HighWater, Mark};

/// How often the mark is synced while commits come in, and how long after the last one.
const MARK_SYNC_PAUSE: Duration = Duration::from_secs(1);
/// The pause before the log is opened again; it doubles with each failure.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(4);
/// After so many bytes the write-ahead log is moved into the database, while nobody waits for it.
const CHECKPOINT_BYTES: u64 = 4 * 1024 * 1024;

/// The owner of a log. Everything here blocks, on a thread of its own.
pub(super) struct Keeper {
    files: Files,
    mark: HighWater,
    mark_synced: Instant,
    /// `None` while the database is being opened again.
    engine: Option<Engine>,
    /// How much was written since the last checkpoint.
    written: u64,
    /// Whether anything was stored. Whoever only looks leaves everything as it is, damage above all.
    appended: bool,
    trouble: Option<Trouble>,
    shared: Arc<Shared>,
}

/// Why nothing is written, named by what is done about it.
enum Trouble {
    /// Open the log again at the given time, with a longer pause next time.
    Failed { again_at: Instant, pause: Duration },
    /// Nothing helps but an operator.
    Lost,
}

impl Keeper {
    /// Opens the log in the file `path` and checks that it has lost nothing.
    pub(super) fn open(path: &Path, opening: Opening) -> Result<Self, LogError> {
        let files = Files::open(path, opening)?;
        let mut mark = open_mark(&files)?;
        let Opened { engine, reader, durability, tail } = open_engine(&files, &mut mark)?;
        let shared = Arc::new(Shared::new(reader, durability, tail.position));
        let written = files.waiting();
        Ok(Self {
            files,
            mark,
            mark_synced: Instant::now(),
            engine: Some(engine),
            written,
            appended: false,
            trouble: None,
            shared,
        })
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

    fn append(&mut self, expected: Position, record: &Record) -> Result<Position, AppendError> {
        if let Some(error) = self.shared.closed.read().clone() {
            return Err(AppendError::Closed(error));
        }
        let engine = self.engine.as_ref().expect("a log that is not closed has its engine");
        match engine.append(expected, record) {
            Ok(true) => {}
            Ok(false) => return Err(AppendError::Conflict),
            Err(error) => return Err(self.refused(&error)),
        }
        self.appended = true;
        self.written += record.bytes.len() as u64;
        let mark = Mark { position: expected.next(), commit: record.id };
        if let Err(error) = self.mark.raise(mark) {
            let error = io_trouble("writing the high-water mark", &error);
            return Err(AppendError::Closed(self.fail(error, REOPEN_PAUSE)));
        }
        self.shared.head.send_replace(mark.position);
        Ok(mark.position)
    }

    fn refused(&mut self, error: &rusqlite::Error) -> AppendError {
        let explained = explain("writing to the log", error);
        match error.sqlite_error_code() {
            // Before anything was written.
            Some(ErrorCode::TooBig | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                AppendError::NotStored(explained)
            }
            Some(_) | None => AppendError::Closed(self.fail(explained, REOPEN_PAUSE)),
        }
    }

    /// When there is something to do even if nobody asks.
    fn next_chore(&self) -> Option<Instant> {
        match &self.trouble {
            None if self.mark.is_synced() => None,
            None => Some(self.mark_synced + MARK_SYNC_PAUSE),
            Some(Trouble::Failed { again_at, .. }) => Some(*again_at),
            Some(Trouble::Lost) => None,
        }
    }

    fn do_chores(&mut self) {
        match self.trouble {
            None => {
                if let Err(error) = self.tidy() {
                    self.fail(error, REOPEN_PAUSE);
                }
            }
            Some(Trouble::Failed { again_at, pause }) if again_at <= Instant::now() => self.reopen(pause),
            Some(Trouble::Failed { .. } | Trouble::Lost) => {}
        }
    }

    fn tidy(&mut self) -> Result<(), LogError> {
        if !self.mark.is_synced() && self.mark_synced.elapsed() >= MARK_SYNC_PAUSE {
            self.mark.sync().map_err(|error| io_trouble("syncing the high-water mark", &error))?;
            self.mark_synced = Instant::now();
        }
        if let Some(engine) = self.engine.as_ref().filter(|_| self.written >= CHECKPOINT_BYTES) {
            self.written = 0;
            engine.checkpoint("PASSIVE")?;
        }
        Ok(())
    }

    /// Closes the log after a fault, until it was opened again, and says why to everybody who asks.
    fn fail(&mut self, error: LogError, pause: Duration) -> LogError {
        self.trouble = Some(Trouble::Failed { again_at: Instant::now() + pause, pause });
        *self.shared.closed.write() = Some(error.clone());
        error
    }

    /// Opens the log again, unless the disk still fails: then the old reader goes on.
    fn reopen(&mut self, pause: Duration) {
        let works = self.files.check_room().and_then(|()| match &self.engine {
            Some(engine) => engine.checkpoint("PASSIVE").map(drop),
            None => Ok(()),
        });
        match works.and_then(|()| self.replace_engine()) {
            Ok(()) => {
                self.trouble = None;
                *self.shared.closed.write() = None;
            }
            Err(error) => {
                // Damage does not heal.
                let lost = error.fault == Fault::Damaged;
                self.fail(error, (2 * pause).min(REOPEN_PAUSE_MAX));
                if lost {
                    self.trouble = Some(Trouble::Lost);
                }
            }
        }
    }

    fn replace_engine(&mut self) -> Result<(), LogError> {
        let mut place = self.shared.reader.lock();
        // Every connection has to go, so that what they have cached goes with them.
        drop((place.take(), self.engine.take()));
        self.mark.settle().map_err(|error| io_trouble("writing the high-water mark", &error))?;
        let Opened { engine, reader, durability, tail } = open_engine(&self.files, &mut self.mark)?;
        engine.checkpoint("TRUNCATE")?;
        engine.prove_writable()?;
        *place = Some(reader);
        self.engine = Some(engine);
        self.written = 0;
        *self.shared.durability.write() = durability;
        self.shared.head.send_replace(tail.position);
        Ok(())
    }

    fn close(mut self) {
        // The reader goes first: nobody may be in the way of what is moved into the database.
        drop(self.shared.reader.lock().take());
        let Some(engine) = self.engine.take().filter(|_| self.trouble.is_none()) else { return };
        if self.appended
            && let Err(error) = self.mark.settle()
        {
            tracing::warn!("the high-water mark could not be synced at the end: {error}");
        }
        if (self.appended || self.files.waiting() == 0)
            && let Err(error) = engine.finish()
        {
            tracing::warn!("the log could not be closed cleanly: {error}");
        }
    }
}
