//! The thread that owns the database: the only one that writes, and the one that opens the log again after a
//! fault.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use application::ports::{AppendError, Fault, LogError, Position, Record, Version};
use rusqlite::ErrorCode;
use tokio::{runtime::Runtime, sync::mpsc, time};

use super::{
    engine::Engine,
    files::{Files, Opening},
    opening::{Opened, open_engine, open_mark},
    shared::{Request, Shared},
    trouble::explain,
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
/// After so many bytes the write-ahead log is moved into the database. Less than what stays free on any disk, so
/// that there is always room for it.
const CHECKPOINT_BYTES: u64 = 1024 * 1024;
/// What a commit takes in the write-ahead log beyond its own size: the rest of its pages, and one or two above.
const COMMIT_OVERHEAD: u64 = 8 * 1024;

/// The owner of a log. Everything here blocks, on a thread of its own.
pub(super) struct Keeper {
    files: Files,
    mark: HighWater,
    mark_synced: Instant,
    /// `None` while the database is being opened again.
    engine: Option<Engine>,
    /// How much was written since the last checkpoint.
    written: u64,
    /// Whether anything was made or stored. Whoever only looks leaves everything as it is, damage above all.
    changed: bool,
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
    /// Opens the log in the file `path` and checks that it has lost nothing.
    pub(super) fn open(path: &Path, opening: Opening) -> Result<Self, LogError> {
        let files = Files::open(path, opening)?;
        let mut mark = open_mark(&files)?;
        let changed = files.is_empty();
        let Opened { engine, reader, durability, tail } = open_engine(&files, &mut mark)?;
        let shared = Arc::new(Shared::new(reader, durability, tail.position));
        match opening {
            Opening::OrCreate => space::take_ballast(files.database(), &files.ballast()),
            // Who only looks changes nothing that need not change.
            Opening::Existing => {}
        }
        let written = files.waiting();
        Ok(Self {
            files,
            mark,
            mark_synced: Instant::now(),
            engine: Some(engine),
            written,
            changed,
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

    fn append(&mut self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        if let Some(error) = self.shared.closed.read().clone() {
            return Err(AppendError::Closed(error));
        }
        if expected != self.mark.mark().version() {
            return Err(AppendError::Conflict);
        }
        if let Err(error) = space::check_room(self.files.database(), record.bytes.len()) {
            return Err(AppendError::Closed(self.stop(Trouble::NoRoom, error)));
        }
        let engine = self.engine.as_ref().expect("a log that is not closed has its engine");
        match engine.append(expected.position, record) {
            Ok(true) => {}
            Ok(false) => return Err(AppendError::Conflict),
            Err(error) => return Err(self.refused(&error)),
        }
        self.changed = true;
        self.written += record.bytes.len() as u64 + COMMIT_OVERHEAD;
        let mark = Mark { position: expected.position.next(), commit: record.id };
        if let Err(error) = self.mark.raise(mark) {
            let error = io_trouble("writing the high-water mark", &error);
            return Err(AppendError::Closed(self.fail(&error, REOPEN_PAUSE)));
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
            Some(_) | None => AppendError::Closed(self.fail(&explained, REOPEN_PAUSE)),
        }
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
            None => {
                if let Err(error) = self.tidy() {
                    self.fail(&error, REOPEN_PAUSE);
                }
            }
            Some(Trouble::NoRoom) => {
                if space::check_room_again(self.files.database()).is_ok() {
                    self.resume();
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

    /// Closes the log for writing, and says why to everybody who asks.
    fn stop(&mut self, trouble: Trouble, error: LogError) -> LogError {
        self.trouble = Some(trouble);
        *self.shared.closed.write() = Some(error.clone());
        error
    }

    /// Closes the log after a fault, until it was opened again.
    fn fail(&mut self, error: &LogError, pause: Duration) -> LogError {
        distrust::declare_if_possible(&self.files.suspicion());
        let detail = format!("{error}; the log is opened again by itself once that works");
        let trouble = Trouble::Failed { again_at: Instant::now() + pause, pause };
        self.stop(trouble, LogError::new(error.fault, detail))
    }

    /// Opens the log again, unless the disk still fails: then the old reader goes on.
    fn reopen(&mut self, pause: Duration) {
        space::make_room_to_open(self.files.database(), &self.files.ballast());
        let writable = distrust::declare(&self.files.suspicion());
        let writable = writable.map_err(|error| io_trouble("opening the log again", &error));
        match writable.and_then(|()| self.replace_engine()) {
            Ok(()) => match space::check_room_again(self.files.database()) {
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

    fn resume(&mut self) {
        self.trouble = None;
        *self.shared.closed.write() = None;
        space::take_ballast(self.files.database(), &self.files.ballast());
    }

    fn replace_engine(&mut self) -> Result<(), LogError> {
        let mut place = self.shared.reader.lock();
        // Every connection has to go, so that what they have cached goes with them.
        drop((place.take(), self.engine.take()));
        self.mark.settle().map_err(|error| io_trouble("writing the high-water mark", &error))?;
        let Opened { engine, reader, durability, tail } = open_engine(&self.files, &mut self.mark)?;
        engine.prove_writable()?;
        *place = Some(reader);
        self.engine = Some(engine);
        self.written = self.files.waiting();
        *self.shared.durability.write() = durability;
        self.shared.head.send_replace(tail.position);
        Ok(())
    }

    fn close(mut self) {
        // The reader goes first: nobody may be in the way of what is moved into the database.
        drop(self.shared.reader.lock().take());
        let Some(engine) = self.engine.take() else { return };
        let ended = match self.trouble {
            None | Some(Trouble::NoRoom) if self.changed => self
                .mark
                .settle()
                .map_err(|error| io_trouble("writing the high-water mark", &error))
                .and_then(|()| engine.finish()),
            None | Some(Trouble::NoRoom) if self.files.waiting() == 0 => engine.finish(),
            // What waits goes on waiting; after a fault, the next start looks at everything anyway.
            None | Some(Trouble::NoRoom | Trouble::Failed { .. } | Trouble::Lost) => Ok(()),
        };
        if let Err(error) = ended {
            distrust::declare_after(error.fault, &self.files.suspicion());
            tracing::warn!("the log could not be closed cleanly, and loses nothing by that: {error}");
        }
    }
}
