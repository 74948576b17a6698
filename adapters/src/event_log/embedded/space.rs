//! Disk space: a reserve that commits never use, and a ballast file that is deleted to open a store on a full disk.

use std::{fs, io, path::Path};

use application::ports::{Fault, LogError};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::{io_error::io_error, layout::Layout};
use crate::private_files::{check, create_file};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// The reserve: a sixteenth of the disk, within these bounds. The lower bound covers one more commit and one more
/// startup of the engine, and leaves most of a 16 MiB disk usable.
const FLOOR_SHARE: u64 = 16;
const FLOOR_MIN: u64 = 2 * MIB;
const FLOOR_MAX: u64 = 64 * MIB;

/// The ballast, as a share of the reserve: enough for the writes of an engine that opens. sled writes the end of a
/// segment and a snapshot of its page table, a few bytes per commit; SQLite writes an index of its write-ahead log.
const BALLAST_SHARE: u64 = 4;
const _: () = assert!(FLOOR_MIN / BALLAST_SHARE >= 512 * KIB, "the ballast covers a segment of sled");

/// The space that a commit may need, as a multiple of its size: engines rewrite a page now and then.
pub(super) const AMPLIFICATION: u64 = 4;

/// The space above the reserve that must be free before writes resume. Without a margin, the next record would stop
/// them again.
pub(super) const RESUME_MARGIN: u64 = MIB / 2;

/// Free space, and the reserve.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub(super) free: u64,
    pub(super) floor: u64,
}

impl Space {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let disk = statvfs(path)?;
        let floor = (disk.f_blocks * disk.f_frsize / FLOOR_SHARE).clamp(FLOOR_MIN, FLOOR_MAX);
        Ok(Self { free: disk.f_bavail * disk.f_frsize, floor })
    }

    /// Whether this many bytes fit above the reserve.
    pub(super) fn has_room_for(self, bytes: u64) -> bool {
        self.free >= self.floor + bytes
    }

    fn ballast(self) -> u64 {
        self.floor / BALLAST_SHARE
    }
}

/// Rejects a write of this many bytes if it would use the reserve.
pub(super) fn check_room(store: &Path, bytes: u64) -> Result<(), LogError> {
    let space =
        Space::of(store).map_err(io_error(&format!("looking up the free space of {}", store.display())))?;
    if space.has_room_for(bytes) {
        return Ok(());
    }
    Err(Fault::Full.error(format!(
        "only {} KiB are left on the disk of {}, and {} KiB must stay free; free some space, and the log accepts \
         writes again",
        space.free / KIB,
        store.display(),
        space.floor / KIB
    )))
}

/// Deletes the ballast if the disk is too full to open the engine.
pub(super) fn make_room_to_open(Layout { directory, ballast, .. }: &Layout) {
    // Without a ballast, opening has to do with the free space.
    if Space::of(directory).is_ok_and(|space| space.free < space.ballast())
        && fs::remove_file(ballast).is_ok()
    {
        tracing::warn!(
            target: "petstore::storage",
            file = %ballast.display(),
            "disk full; deleted the ballast file to open the log"
        );
    }
}

/// Creates the ballast if it is missing and the disk has room for it.
pub(super) fn create_ballast(Layout { directory, ballast, .. }: &Layout) {
    if let Err(error) = check(ballast) {
        tracing::warn!(target: "petstore::storage", %error, "cannot use the ballast file");
        return;
    }
    let Ok(space) = Space::of(directory) else { return };
    if ballast.exists() || !space.has_room_for(space.ballast()) {
        return;
    }
    let reserve = |file| Ok(fallocate(file, FallocateFlags::empty(), 0, space.ballast())?);
    if let Err(error) = create_file(ballast).and_then(reserve) {
        tracing::warn!(
            target: "petstore::storage",
            file = %ballast.display(), %error,
            "cannot create the ballast file"
        );
        // An incomplete ballast is useless.
        let _ = fs::remove_file(ballast);
    }
}
