//! The calls that are made to sled, each behind the [`guard`](super::guard).

use std::{
    fs::{File, OpenOptions},
    path::Path,
};

use application::ports::{CommitId, LogError, Position, ReadBound, Record, StoredRecord};

use super::{
    chunks::{self, Assembly},
    guard::guarded,
    inspect::SEGMENT,
};
use crate::event_log::{
    disk::io_trouble,
    high_water::{HighWater, Mark},
};

/// How much of the log sled keeps in memory. The log is read once, at the start; the rest is writing.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// sled, open.
pub(super) struct Engine {
    db: ::sled::Db,
    /// A handle of our own to sled's file: sled's flush writes, but does not make durable.
    records: File,
}

impl Engine {
    /// Opens sled's files in `path`, or makes them. Nothing is durable yet. Errors speak of the store
    /// `store`.
    pub(super) fn open(path: &Path, store: &Path) -> Result<Self, LogError> {
        let doing = format!("opening the log {}", store.display());
        // Every flush is ours; a background flusher would only sync twice.
        let config = ::sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .segment_size(SEGMENT)
            .flush_every_ms(None);
        let db = guarded(&doing, || config.open())?;
        let records = OpenOptions::new().write(true).open(path.join("db"));
        let records = records.map_err(|error| io_trouble(&doing, &error))?;
        Ok(Self { db, records })
    }

    /// Stores the record and returns when it is on disk. After an error nobody can tell what is there.
    pub(super) fn append(&self, position: Position, record: &Record) -> Result<(), LogError> {
        guarded("writing to the log", || {
            self.db.apply_batch(chunks::batch(position, record))?;
            self.db.flush()
        })?;
        self.records.sync_data().map_err(|error| io_trouble("syncing the log", &error))
    }

    /// Finds the last commit, and that nothing which was acknowledged is missing.
    pub(super) fn check(&self, mark: &HighWater) -> Result<Mark, LogError> {
        let tail = self.tail()?;
        let marked = mark.mark().position;
        let within = Position::START < marked && marked <= tail.position;
        let found = within.then(|| self.commit_at(marked)).transpose()?;
        mark.check(tail.position, found)?;
        Ok(tail)
    }

    /// Records after `after` up to `head`, within `bound`.
    pub(super) fn read(
        &self,
        after: Position,
        head: Position,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let mut found: Vec<StoredRecord> = Vec::new();
        let mut room = bound.bytes;
        if after >= head {
            return Ok(found);
        }
        let mut pairs = self.db.range(chunks::first_key(after.next())..chunks::first_key(head.next()));
        let mut position = after.next();
        while position <= head && found.len() < bound.records && (room > 0 || found.is_empty()) {
            let record = assemble(position, &mut pairs)?.finish();
            room = room.saturating_sub(record.bytes.len());
            found.push(record);
            position = position.next();
        }
        Ok(found)
    }

    /// Wakes the threads that wait for a write that has failed: sled does not always do that. Never waits
    /// itself.
    pub(super) fn nudge(&self) {
        if self.db.context.global_error().is_err() {
            // Fails at once, and wakes everybody on the way.
            let _ = guarded("waking up the log", || self.db.flush());
        }
    }

    /// Gives everything back. What is not on disk by now is none of ours.
    pub(super) fn close(self) {
        // sled syncs once more as it goes, and panics if that fails: nothing that was acknowledged depends on
        // it.
        if let Err(error) = guarded("closing the log", move || {
            drop(self);
            Ok(())
        }) {
            tracing::debug!("{error}");
        }
    }

    /// The last commit.
    fn tail(&self) -> Result<Mark, LogError> {
        let Some((key, _)) = guarded("reading the end of the log", || self.db.last())? else {
            return Ok(Mark::START);
        };
        let position = chunks::position_of(&key)
            .ok_or_else(|| chunks::damaged(Position::START, "a key is none of a position"))?;
        Ok(self.assemble(position)?.mark())
    }

    /// Which commit stands at `position`, which is not beyond the tail.
    fn commit_at(&self, position: Position) -> Result<CommitId, LogError> {
        Ok(self.assemble(position)?.mark().commit)
    }

    fn assemble(&self, position: Position) -> Result<Assembly, LogError> {
        let range = chunks::first_key(position)..chunks::first_key(position.next());
        assemble(position, &mut self.db.range(range))
    }
}

fn assemble(position: Position, pairs: &mut ::sled::Iter) -> Result<Assembly, LogError> {
    let mut next = || {
        let doing = format!("reading position {position}");
        let pair = guarded(&doing, || pairs.next().transpose())?;
        pair.ok_or_else(|| chunks::damaged(position, "it is missing or ends too early"))
    };
    let mut assembly = Assembly::start(position, &next()?)?;
    while !assembly.is_complete() {
        assembly.add(&next()?)?;
    }
    Ok(assembly)
}
