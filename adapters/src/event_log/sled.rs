//! The default log: sled in a directory. This file holds only what is specific to sled; the rest is in
//! [`embedded`](super::embedded).
//!
//! Reading order: this file, `chunks` (how a record is stored), `inspect` (how damage is detected before sled
//! repairs it away), `salvage` (reads records without sled).

mod chunks;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inspect;
mod salvage;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Once,
    thread,
};

use application::ports::{Fault, LogError, Position, Record, StoredRecord, Version};
use bytes::Bytes;

use super::embedded::{
    EmbeddedLog, Engine, Layout, Records, Visit, check_nothing_is_lost, damaged, io_error, one_line,
    silence_panics, sync_files,
};
use crate::private_files::{self, check, create_directories, if_exists};

use inspect::SEGMENT;

/// The size of sled's cache. The log is read only once, at startup, and appends touch only its end.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// A log in a directory.
pub type SledLog = EmbeddedLog<Sled>;

/// An open sled database. It syncs once more when it is dropped, and panics if that fails. No acknowledged commit depends
/// on this sync.
pub struct Sled {
    db: ::sled::Db,
    /// A separate handle to sled's file, because sled's flush writes without syncing.
    file: File,
}

impl Engine for Sled {
    const NAME: &'static str = "sled";

    fn layout(path: &Path) -> Layout {
        Layout::in_directory(path)
    }

    fn exists(layout: &Layout) -> Result<bool, LogError> {
        Ok(records(layout).is_file())
    }

    /// Without the directory for large values, which is always empty.
    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        check(&directory(layout))?;
        for entry in if_exists(fs::read_dir(directory(layout)))?.into_iter().flatten() {
            let entry = entry?;
            check(&entry.path())?;
            if !entry.file_type()?.is_dir() {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    fn record_files(layout: &Layout) -> Vec<PathBuf> {
        vec![records(layout)]
    }

    fn open(layout: &Layout, acknowledged: Version) -> Result<Self, LogError> {
        if !records(layout).exists() {
            // sled would replace a lost file with a new one.
            check_nothing_is_lost(acknowledged, Position::START, None)?;
            create_directories(&directory(layout)).map_err(io_error("creating the log"))?;
        }
        remove_unfinished(layout).map_err(io_error("opening the log"))?;
        inspect::try_if_suspect(layout, acknowledged)?;
        Self::open_in(layout)
    }

    fn prepare(&self, layout: &Layout) -> Result<(), LogError> {
        let synced = Self::files(layout).and_then(|files| sync_files(&directory(layout), &files));
        synced.map_err(io_error("writing the log to the disk"))
    }

    fn append(&self, first: Position, records: &[Record]) -> Result<(), LogError> {
        let written = self.db.apply_batch(chunks::batch(first, records)).and_then(|()| self.db.flush());
        written.map_err(log_error("writing to the log"))?;
        self.file.sync_data().map_err(io_error("syncing the log"))
    }

    /// sled does not always wake its callers after a failed write.
    fn unblock(&self) {
        if self.db.context.global_error().is_err() {
            // Fails at once, and wakes all callers.
            let _ = self.db.flush();
        }
    }

    fn durability_settings(&self) -> Vec<(&'static str, String)> {
        vec![("sync", "flush and fdatasync before every acknowledgement".to_owned())]
    }

    fn salvage(layout: &Layout, acknowledged: Option<Version>) -> Result<Option<Box<dyn Records>>, LogError> {
        Ok(Some(Box::new(salvage::find(layout, acknowledged)?)))
    }
}

impl Records for Sled {
    fn last(&self) -> Result<Version, LogError> {
        let Some((key, _)) = self.db.last().map_err(log_error("reading the end of the log"))? else {
            return Ok(Version::START);
        };
        let position = chunks::position_of(&key)
            .ok_or_else(|| damaged(Position::START, "a key does not encode a position"))?;
        let mut pairs = self.db.range(chunks::key(position, 0)..);
        Ok(assemble(position, &mut pairs)?.0)
    }

    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let mut pairs = self.db.range(chunks::key(after.next(), 0)..chunks::key(last.next(), 0));
        for position in (after.0 + 1..=last.0).map(Position) {
            let (version, bytes) = assemble(position, &mut pairs)?;
            if visit(StoredRecord { position, id: version.commit, bytes }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Sled {
    /// Opens or creates sled's files. Nothing is durable yet.
    fn open_in(layout: &Layout) -> Result<Self, LogError> {
        static SILENCED: Once = Once::new();
        // Suppresses the report of panics in sled's threads. Their callers get the error.
        SILENCED.call_once(|| {
            silence_panics(|| thread::current().name().is_some_and(|name| name.starts_with("sled-io-")));
        });
        // Every append flushes, so a background flusher would only add syncs.
        let config = ::sled::Config::new()
            .path(directory(layout))
            .cache_capacity(CACHE_BYTES)
            .segment_size(SEGMENT)
            .flush_every_ms(None);
        let db = config.open().map_err(log_error("opening the log"))?;
        let file = private_files::open(&records(layout)).map_err(io_error("opening the log"))?;
        Ok(Self { db, file })
    }
}

fn assemble(position: Position, pairs: &mut ::sled::Iter) -> Result<(Version, Bytes), LogError> {
    chunks::assemble(position, |number| match pairs.next() {
        Some(Ok((key, chunk))) if *key == chunks::key(position, number) => Ok(chunk),
        Some(Ok(_)) | None => Err(damaged(position, "it is missing or incomplete")),
        Some(Err(error)) => Err(log_error(&format!("reading position {position}"))(error)),
    })
}

/// The directory of sled's files.
fn directory(layout: &Layout) -> PathBuf {
    layout.directory.join("sled")
}

/// The file that holds every record.
fn records(layout: &Layout) -> PathBuf {
    directory(layout).join("db")
}

/// Deletes leftovers of an interrupted startup that sled would take for damage: an unfinished snapshot, and settings
/// that may be truncated, because sled writes them before it creates the file for records.
fn remove_unfinished(layout: &Layout) -> io::Result<()> {
    let never_used = !records(layout).exists();
    for path in Sled::files(layout)? {
        let is_snapshot = path.extension().is_some_and(|extension| extension == "generating");
        if never_used || is_snapshot {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Maps an error of sled that occurred while `doing` something.
fn log_error(doing: &str) -> impl Fn(::sled::Error) -> LogError {
    move |error| match error {
        ::sled::Error::Io(error) => io_error(doing)(original(error)),
        ::sled::Error::Corruption { .. } | ::sled::Error::CollectionNotFound(_) => {
            Fault::Damaged.error(format!("{doing} failed: the files of the storage engine are damaged"))
        }
        ::sled::Error::Unsupported(reason) => {
            Fault::CannotOpen.error(format!("{doing} failed: {}", one_line(&reason)))
        }
        ::sled::Error::ReportableBug(reason) => {
            Fault::WriteFailed.error(format!("{doing} failed: {}", one_line(&reason)))
        }
    }
}

/// Restores the system error, which sled passes on as text with its code.
fn original(error: io::Error) -> io::Error {
    let text = error.to_string();
    let code = text.split_once("code: ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    code.map_or(error, io::Error::from_raw_os_error)
}
