//! The high-water mark of an embedded log: the version that the log must reach, in a small file next to it.
//!
//! Checksums and contiguous positions cannot reveal a missing end of the log. The mark can: it is written after each
//! commit is durable and before the commit is acknowledged, so a log that ends before its mark has lost commits.
//!
//! The file holds two slots. Between two syncs only one of them is written, so the other always holds a synced mark: a
//! torn write loses the marks of the last second, never the whole mark.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use application::ports::{CommitId, Fault, LogError, Position, Version};
use uuid::Uuid;

use crate::private_files;

/// Checks that a log that ends at `head`, and holds `found` at the position of the mark, has lost nothing.
pub(crate) fn check_nothing_is_lost(
    mark: Version,
    head: Position,
    found: Option<CommitId>,
) -> Result<(), LogError> {
    let Some(commit) = mark.commit else { return Ok(()) };
    let position = mark.position;
    let detail = match found {
        Some(found) if found == commit => return Ok(()),
        Some(found) => format!(
            "position {position} holds commit {}, but {} was acknowledged there: this is another \
             log, or its end was lost and rewritten",
            found.0, commit.0
        ),
        None => format!(
            "the log ends at position {head}, but commits up to {position} were acknowledged: the rest is missing or \
             cannot be read"
        ),
    };
    Err(Fault::Damaged.error(detail))
}

#[derive(Debug)]
pub(super) struct HighWaterMark {
    pub(super) file: File,
    /// The version that the log must reach.
    pub(super) version: Version,
    /// The slot to write to; the other one is synced.
    slot: usize,
    /// Whether the mark would survive a power cut.
    synced: bool,
}

/// Slots lie on separate pages, so that no write can touch both.
const SLOT_DISTANCE: u64 = 4_096;
const SLOTS: usize = 2;
const MAGIC: &[u8; 8] = b"petmark1";
const SLOT_LEN: usize = MAGIC.len() + 8 + 16 + 4;

impl HighWaterMark {
    /// Creates the mark of an empty log, atomically.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = private_files::replace_with(path, |file| {
            (0..SLOTS).try_for_each(|slot| write_slot(file, slot, Version::START))
        })?;
        Ok(Self { file, version: Version::START, slot: 0, synced: true })
    }

    /// Opens the mark, or returns `None` if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, LogError> {
        let mark = Self::find(path, private_files::open)?;
        if let Some(mark) = &mark {
            // The previous process may have ended before it synced.
            mark.file.sync_data().map_err(|error| cannot_open(path, &error))?;
        }
        Ok(mark)
    }

    /// Reads the mark without opening it for writing, or returns `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Version>, LogError> {
        Ok(Self::find(path, private_files::open_to_read)?.map(|mark| mark.version))
    }

    fn find(path: &Path, open: fn(&Path) -> io::Result<File>) -> Result<Option<Self>, LogError> {
        let file = private_files::if_exists(open(path)).map_err(|error| cannot_open(path, &error))?;
        let Some(file) = file else { return Ok(None) };
        // The newest mark counts.
        let marks = (0..SLOTS).filter_map(|slot| Some((slot, read_slot(&file, slot)?)));
        let newest = marks.max_by_key(|(_, mark)| mark.position);
        let (slot, version) = newest.ok_or_else(|| end_unknown(path, "is damaged in both of its slots"))?;
        Ok(Some(Self { file, version, slot: SLOTS - 1 - slot, synced: true }))
    }

    /// Raises the mark. The new mark survives the process; [`sync`](Self::sync) makes it survive a power cut.
    pub(super) fn raise(&mut self, version: Version) -> io::Result<()> {
        self.version = version;
        self.synced = false;
        write_slot(&self.file, self.slot, version)
    }

    /// Syncs the mark, and switches to the other slot.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if !self.synced {
            self.file.sync_data()?;
            self.synced = true;
            self.slot = SLOTS - 1 - self.slot;
        }
        Ok(())
    }

    /// Writes and syncs the mark in both slots, so that it survives the loss of either. Called at a clean stop,
    /// and when the log is reopened after an error, because the cache and the disk may differ.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        for _ in 0..SLOTS {
            self.raise(self.version)?;
            self.sync()?;
        }
        Ok(())
    }
}

/// The error of a missing or damaged mark. `what` completes the sentence "the high-water mark PATH …".
pub(super) fn end_unknown(path: &Path, what: &str) -> LogError {
    Fault::Damaged.error(format!(
        "the high-water mark {} {what}: without this file of the store, commits that are missing at the end of the log \
         cannot be detected",
        path.display()
    ))
}

fn cannot_open(path: &Path, error: &io::Error) -> LogError {
    Fault::CannotOpen.error(format!(
        "the high-water mark {} cannot be opened: {error}; check the disk, and run as the user that owns the store",
        path.display()
    ))
}

fn write_slot(file: &File, slot: usize, mark: Version) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(SLOT_LEN);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&mark.position.0.to_be_bytes());
    bytes.extend_from_slice(mark.commit.map_or(Uuid::nil(), |commit| commit.0).as_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
    file.write_all_at(&bytes, slot as u64 * SLOT_DISTANCE)
}

fn read_slot(file: &File, slot: usize) -> Option<Version> {
    let mut bytes = [0; SLOT_LEN];
    file.read_exact_at(&mut bytes, slot as u64 * SLOT_DISTANCE).ok()?;
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    let (position, commit) = body.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let sound = crc32c::crc32c(body) == u32::from_be_bytes(*checksum);
    let position = Position(u64::from_be_bytes(*position));
    let commit = CommitId(Uuid::from_slice(commit).ok()?);
    let mark = if position == Position::START { Version::START } else { Version::at(position, commit) };
    sound.then_some(mark)
}

#[cfg(test)]
mod tests;
