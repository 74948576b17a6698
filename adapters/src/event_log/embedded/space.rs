//! Free space on the disk: a minimum below which nothing is written, and a ballast file whose space is
//! released to open a full store.

use std::{fs, io, io::Write as _, path::Path};

use application::ports::{Fault, LogError};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::io_error::io_error;
use crate::private_files::{check_file, create_file};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Free space that is never written into: a sixteenth of the disk, within these bounds. The lower one covers
/// what one more commit and one more start of the engine need, and leaves most of a 16 MiB disk usable.
const FLOOR_SHARE: u64 = 16;
const FLOOR_MIN: u64 = 2 * MIB;
const FLOOR_MAX: u64 = 64 * MIB;

/// The ballast: enough for what an engine writes when it opens. For sled that is the end of a segment and a
/// snapshot of its page table, which takes a few bytes per commit; for SQLite an index of its write-ahead log.
const BALLAST_SHARE: u64 = 4;
const _: () = assert!(FLOOR_MIN / BALLAST_SHARE >= 512 * KIB, "the ballast covers a segment of sled");

/// What a commit may take on disk, as a multiple of its size: engines rewrite a page now and then.
const AMPLIFICATION: u64 = 4;

/// What must be free beyond the floor before writing goes on.
const RESUME_MARGIN: u64 = MIB / 2;

/// What is free, and how much of that must stay free.
#[derive(Debug, Clone, Copy)]
struct Space {
    free: u64,
    floor: u64,
}

impl Space {
    fn of(path: &Path) -> io::Result<Self> {
        let disk = statvfs(path)?;
        let floor = (disk.f_blocks * disk.f_frsize / FLOOR_SHARE).clamp(FLOOR_MIN, FLOOR_MAX);
        Ok(Self { free: disk.f_bavail * disk.f_frsize, floor })
    }

    fn ballast(self) -> u64 {
        self.floor / BALLAST_SHARE
    }
}

/// What is free on the disk, and how much of that is never written into.
pub(super) fn free_and_reserved(store: &Path) -> io::Result<(u64, u64)> {
    let Space { free, floor } = Space::of(store)?;
    Ok((free, floor))
}

/// Refuses a record that the disk has no room for, before anything is written.
pub(super) fn check_room(store: &Path, record: usize) -> Result<(), LogError> {
    require(store, AMPLIFICATION * record as u64)
}

/// Whether writing may go on after there was no room: only with some to spare, or the next record ends it
/// again.
pub(super) fn check_room_again(store: &Path) -> Result<(), LogError> {
    require(store, RESUME_MARGIN)
}

/// Fails as a full disk does if a copy of so many bytes would go below the floor.
pub(super) fn check_room_for_copy(store: &Path, bytes: u64) -> io::Result<()> {
    let space = Space::of(store)?;
    if space.free >= space.floor + bytes { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
}

fn require(store: &Path, bytes: u64) -> Result<(), LogError> {
    let space =
        Space::of(store).map_err(io_error(&format!("looking up the free space of {}", store.display())))?;
    if space.free >= space.floor + bytes {
        return Ok(());
    }
    let detail = format!(
        "only {} KiB are left on the disk of {}, and {} KiB must stay free; free some space, and writes resume \
         automatically",
        space.free / KIB,
        store.display(),
        space.floor / KIB
    );
    Err(LogError::new(Fault::Full, detail))
}

/// Gives the ballast up if the disk is so full that the engine could not even be opened.
pub(super) fn make_room_to_open(store: &Path, ballast: &Path) {
    if Space::of(store).is_ok_and(|space| space.free < space.ballast()) {
        // There may be none left; then opening has to do with what there is.
        if check_file(ballast).is_ok() && fs::remove_file(ballast).is_ok() {
            tracing::warn!("the disk of {} is full: released the ballast to open the log", store.display());
        }
    }
}

/// Takes ballast on board if there is none and the disk has room for it.
pub(super) fn create_ballast(store: &Path, ballast: &Path) {
    if let Err(error) = check_file(ballast) {
        tracing::warn!("there is no ballast to release when the disk is full: {error}");
        return;
    }
    let Ok(space) = Space::of(store) else { return };
    if ballast.exists() || space.free < space.floor + space.ballast() {
        return;
    }
    if let Err(error) = fill(ballast, space.ballast()) {
        tracing::warn!("could not create the ballast {}: {error}", ballast.display());
        // A part of it would only look like ballast.
        let _ = fs::remove_file(ballast);
    }
}

fn fill(path: &Path, len: u64) -> io::Result<()> {
    let mut file = create_file(path)?;
    if fallocate(&file, FallocateFlags::empty(), 0, len).is_ok() {
        return Ok(());
    }
    // Not every file system reserves space on demand.
    let zeros = vec![0; 64 * 1024];
    for _ in 0..len / zeros.len() as u64 {
        file.write_all(&zeros)?;
    }
    Ok(())
}
