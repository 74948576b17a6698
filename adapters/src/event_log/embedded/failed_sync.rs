//! Repairs files after a failed write or sync.
//!
//! When a sync fails, Linux keeps the data in the page cache and marks it clean: readers see it, the next sync
//! succeeds, and the disk does not have it. Commits on top of such data would be lost in a power cut. So before the
//! files are reopened, every byte is read twice: through the cache and from the disk. Where the two differ, the cached
//! bytes are the newer ones; they are dropped from the cache and written again. Then everything is synced and compared
//! once more. The files are trusted only if the disk holds what readers see. The usual checks then decide whether they
//! are an intact log.
//!
//! Dropping the pages is necessary. On ext4, the block of a failed first write stays marked as unwritten while the page
//! counts as written: writing the page again succeeds, and the block still reads as zeros after the next mount.
//! Dropping is not sufficient, because the kernel may ignore the advice; hence the second comparison.

use std::{
    fs::File,
    io::{self, Write as _},
    num::NonZeroU64,
    os::unix::fs::FileExt as _,
    path::Path,
};

use rustix::{
    fs::{Advice, OFlags, fadvise, fcntl_setfl},
    io::Errno,
};

use crate::private_files::{self, create_file};

/// The number of bytes compared at a time.
const BLOCK: usize = 1024 * 1024;
/// Direct I/O needs memory and offsets aligned to the block size of the disk; none is larger than this.
const ALIGNMENT: usize = 4_096;

const TEXT: &str = "A write or sync failed: the page cache may hold data of this store that the disk does not \
                    have. petstore compares the files with the disk before it opens them.\n";

/// Writes the failed-sync marker. Succeeds only if the disk accepts writes.
pub(super) fn write_marker(marker: &Path) -> io::Result<()> {
    let mut file = create_file(marker)?;
    file.write_all(TEXT.as_bytes())?;
    file.sync_all()
}

pub(super) fn write_marker_if_possible(marker: &Path) {
    if let Err(error) = write_marker(marker) {
        tracing::debug!(target: "petstore::storage", %error, "cannot write the failed-sync marker");
    }
}

/// Makes the disk hold what readers of the file see, and verifies it.
pub(super) fn bring_to_disk(path: &Path) -> io::Result<()> {
    let cached = private_files::open(path)?;
    // Only clean pages can be compared and dropped. The success of this sync proves nothing about the failed one.
    cached.sync_all()?;
    let Some(disk) = open_past_cache(path)? else {
        // Some file systems do not support direct I/O; there, only the advice is possible.
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
    tracing::warn!(
        target: "petstore::storage",
        file = %path.display(), blocks = differences,
        "rewrote blocks that had not reached the disk"
    );
    cached.sync_all()?;
    compare(&cached, &disk, |offset, _| {
        let what = format!("the data from byte {offset} of {} on does not reach the disk", path.display());
        Err(io::Error::other(what))
    })
}

/// Opens the file for direct I/O; `None` if the file system does not support it.
fn open_past_cache(path: &Path) -> io::Result<Option<File>> {
    let tried = private_files::open_to_read(path).and_then(|file| {
        fcntl_setfl(&file, OFlags::DIRECT)?;
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

/// Calls `differs` with the offset and the cached bytes of every block that differs on the disk.
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

/// The aligned part of the buffer, which is one alignment shorter.
fn aligned(buffer: &mut [u8]) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let len = buffer.len() - ALIGNMENT;
    &mut buffer[start..start + len]
}

/// Fills the block, or as much of it as the file has.
fn read_block(file: &File, block: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut len = 0;
    // Only the last read of a file ends unaligned, and direct I/O cannot continue from there.
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
