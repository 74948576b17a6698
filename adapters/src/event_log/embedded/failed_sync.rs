//! What to do with files after a write or sync has failed.
//!
//! When a sync fails, Linux keeps the data in its cache and marks it clean: every reader sees it, the next
//! sync succeeds, and the disk does not have it. A log that was opened on top of such data would acknowledge
//! commits whose predecessors vanish with the power. So before the files are opened again, every byte is read
//! twice, through the cache and past it. Where the two differ, the cached bytes, which are what was written
//! last, are dropped from the cache and written again; then everything is synced and compared once more. The
//! files are trusted only if the disk holds what readers see. The usual checks then decide whether they are
//! an intact log.
//!
//! Dropping from the cache is necessary: on ext4 the block of a failed first write stays marked as never
//! written while the cached page believes otherwise, so writing the page again succeeds, and the block still
//! reads as zeros after the next mount. It is not sufficient: the kernel need not follow the advice. Hence
//! the second comparison.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    num::NonZeroU64,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use application::ports::Fault;
use rustix::{
    fs::{Advice, fadvise},
    io::Errno,
};

use crate::private_files::{self, create_file};

/// How much is compared at a time.
const BLOCK: usize = 1024 * 1024;
/// Reading past the cache needs memory and offsets at multiples of the disk's block size; none is larger.
const ALIGNMENT: usize = 4_096;

const TEXT: &str = "A write or sync failed: the files of this store may show data that the disk does not \
                    have. They are compared with the disk before they are opened again.\n";

/// Writes the marker that tells later starts not to trust the files. Succeeds only if the disk accepts writes.
pub(super) fn write_marker(marker: &Path) -> io::Result<()> {
    let mut file = create_file(marker)?;
    file.write_all(TEXT.as_bytes())?;
    file.sync_all()
}

/// Writes the marker if the disk accepts writes.
pub(super) fn write_marker_if_possible(marker: &Path) {
    if let Err(error) = write_marker(marker) {
        tracing::debug!("could not write the failed-sync marker: {error}");
    }
}

/// Writes the marker if opening the log has failed because of the disk: the next start must not
/// mistake its own sync, which may succeed, for the one that failed.
pub(super) fn write_marker_after(fault: Fault, marker: &Path) {
    match fault {
        Fault::WriteFailed | Fault::Full => write_marker_if_possible(marker),
        Fault::Unreachable
        | Fault::Damaged
        | Fault::FilesMissing
        | Fault::Diverged
        | Fault::AnotherLog
        | Fault::Foreign
        | Fault::UnsupportedFormat
        | Fault::CannotOpen
        | Fault::TooLarge
        | Fault::NotDurable
        | Fault::Stopped => {}
    }
}

/// Makes the disk hold what readers of these files see, and proves it.
pub(super) fn resolve(files: &[PathBuf]) -> io::Result<()> {
    files.iter().try_for_each(|path| bring_to_disk(path))
}

/// Removes the marker: the files can be trusted again.
pub(super) fn remove_marker(marker: &Path) -> io::Result<()> {
    fs::remove_file(marker)
}

fn bring_to_disk(path: &Path) -> io::Result<()> {
    let cached = private_files::open(path)?;
    // Only what is clean can be compared and dropped. That this sync succeeds proves nothing about what
    // failed before.
    cached.sync_all()?;
    let Some(disk) = open_past_cache(path)? else {
        // Not every file system can be read past the cache. There the advice has to do.
        return Ok(fadvise(&cached, 0, None, Advice::DontNeed)?);
    };
    let mut differences = 0;
    compare(&cached, &disk, |offset, shown| {
        differences += 1;
        fadvise(&cached, offset, NonZeroU64::new(shown.len() as u64), Advice::DontNeed)?;
        cached.write_all_at(shown, offset)
    })?;
    if differences == 0 {
        return Ok(());
    }
    tracing::warn!("{differences} blocks of {} had not reached the disk: wrote them again", path.display());
    cached.sync_all()?;
    compare(&cached, &disk, |offset, _| {
        let what = format!("the data from byte {offset} of {} on does not reach the disk", path.display());
        Err(io::Error::other(what))
    })
}

/// Opens the file for reading from the disk itself, if the file system can do that.
fn open_past_cache(path: &Path) -> io::Result<Option<File>> {
    let tried = private_files::open_past_cache(path).and_then(|file| {
        read_block(&file, aligned(&mut vec![0; 2 * ALIGNMENT]), 0)?;
        Ok(file)
    });
    match tried {
        Ok(file) => Ok(Some(file)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
            Some(_) | None => Err(error),
        },
    }
}

/// Calls `differs` with the place and the cached bytes of every block that the disk holds otherwise.
fn compare(
    cached: &File,
    disk: &File,
    mut differs: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut shown = vec![0; BLOCK];
    let mut held = vec![0; BLOCK + ALIGNMENT];
    let held = aligned(&mut held);
    let mut offset = 0;
    loop {
        let shown_len = read_block(cached, &mut shown, offset)?;
        let held_len = read_block(disk, held, offset)?;
        if shown[..shown_len] != held[..held_len] {
            differs(offset, &shown[..shown_len])?;
        }
        if shown_len < BLOCK {
            return Ok(());
        }
        offset += BLOCK as u64;
    }
}

/// The part of the buffer that starts where reading past the cache needs it to; one alignment shorter.
fn aligned(buffer: &mut [u8]) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let len = buffer.len() - ALIGNMENT;
    &mut buffer[start..start + len]
}

/// Fills the block as far as the file goes.
fn read_block(file: &File, block: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut len = 0;
    // A read that ends between two multiples was the end; past the cache nothing can be asked for from there.
    while len < block.len() && len.is_multiple_of(ALIGNMENT) {
        match file.read_at(&mut block[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
