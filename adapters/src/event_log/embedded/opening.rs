//! Opens a log, at startup and after an error. The log is neither served nor changed before it is known to be complete.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use application::ports::{LogError, Version};

use super::{
    engine::{Engine, check, discard},
    failed_sync,
    high_water_mark::{self, HighWaterMark},
    io_error::io_error,
    layout::{Layout, sync_files},
    open_files::OpenFiles,
    panics, space,
};
use crate::private_files::sync_directory;

pub(super) struct LockedStore {
    pub(super) layout: Layout,
    pub(super) mark: HighWaterMark,
    lock: File,
}

/// Returns the files of a log. Called before the engine opens them, because it may follow links.
pub(super) fn files_of<E: Engine>(layout: &Layout) -> Result<Vec<PathBuf>, LogError> {
    E::files(layout).map_err(|error| layout.rejected(&format!("cannot be opened ({error})")))
}

/// Takes the lock and opens the high-water mark. The mark is the first file to be created, so a log without a mark has
/// lost it.
pub(super) fn open_store<E: Engine>(path: &Path) -> Result<LockedStore, LogError> {
    let layout = E::layout(path);
    layout.check_kind()?;
    let exists = || {
        files_of::<E>(&layout)?;
        panics::reading("looking for the log", || E::exists(&layout))
    };
    if layout.path.is_file() && !layout.lock.exists() {
        // Reject another kind of file before creating a lock file next to it.
        exists()?;
    }
    let lock = layout.lock()?;
    let mark = match HighWaterMark::open(&layout.mark)? {
        Some(mark) => mark,
        None if exists()? => return Err(high_water_mark::end_unknown(&layout.mark, "is missing")),
        None => HighWaterMark::create(&layout.mark).map_err(io_error("creating the store"))?,
    };
    Ok(LockedStore { layout, mark, lock })
}

/// Opens the engine, and checks that its log is durable and complete. Also returns the last commit and the open files.
/// No other engine may have the files open.
///
/// After a failed write or sync, the files are first compared with the disk. A commit on top of data that exists only
/// in the page cache would be lost together with that data.
pub(super) fn open_engine<E: Engine>(
    LockedStore { layout, mark, lock }: &LockedStore,
) -> Result<(E, Version, OpenFiles), LogError> {
    let not_synced = io_error("writing the log to the disk");
    space::make_room_to_open(layout);
    let has_failed_sync = layout.has_failed_sync_marker();
    let files = files_of::<E>(layout)?;
    if has_failed_sync {
        files.iter().try_for_each(|file| failed_sync::bring_to_disk(file)).map_err(&not_synced)?;
    }
    // The last writes of a killed process may still be in the page cache.
    sync_files(&layout.directory, &files).map_err(&not_synced)?;
    let doing = format!("opening the store {}", layout.path.display());
    let engine = panics::reading(&doing, || E::open(layout, mark.version))?;
    let checked = check(&engine, mark.version).and_then(|last| {
        panics::writing("preparing the log", || engine.prepare(layout))?;
        sync_directory(&layout.directory).map_err(&not_synced)?;
        if has_failed_sync {
            fs::remove_file(&layout.not_synced).map_err(&not_synced)?;
        }
        let files =
            OpenFiles::new([(&layout.mark, &mark.file), (&layout.lock, lock)], E::record_files(layout))?;
        Ok((last, files))
    });
    match checked {
        Ok((last, files)) => Ok((engine, last, files)),
        Err(error) => {
            discard(engine);
            Err(error)
        }
    }
}
