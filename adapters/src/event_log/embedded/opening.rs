//! Opens a log, at startup and after an error. The log is neither served nor changed before it is known to be complete.

use std::{
    fs::{self, File},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError, Position, Version};

use super::{
    engine::{CloseMode, Engine},
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
    pub(super) is_new: bool,
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
    files_of::<E>(&layout)?;
    let (mark, is_new) = match HighWaterMark::open(&layout.mark)? {
        Some(mark) => (mark, false),
        None if exists()? => return Err(high_water_mark::end_unknown(&layout.mark, "is missing")),
        None => (HighWaterMark::create(&layout.mark).map_err(io_error("creating the store"))?, true),
    };
    Ok(LockedStore { layout, mark, is_new, lock })
}

/// Opens the engine, and checks that its log is durable and complete. Also returns the last commit and the open files.
/// No other engine may have the files open.
///
/// After a failed write or sync, the files are first compared with the disk. A commit on top of data that exists only
/// in the page cache would be lost together with that data.
pub(super) fn open_engine<E: Engine>(store: &LockedStore) -> Result<(E, Version, OpenFiles), LogError> {
    try_to_open(store).inspect_err(|error| {
        // A sync of the next startup may succeed, which proves nothing about a failed one.
        if matches!(error.fault, Fault::WriteFailed | Fault::Full) {
            failed_sync::write_marker_if_possible(&store.layout.not_synced);
        }
    })
}

fn try_to_open<E: Engine>(
    LockedStore { layout, mark, lock, .. }: &LockedStore,
) -> Result<(E, Version, OpenFiles), LogError> {
    let not_synced = io_error("writing the log to the disk");
    space::make_room_to_open(layout);
    let has_failed_sync = layout.has_failed_sync_marker();
    let files = E::files(layout).map_err(&not_synced)?;
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

/// Returns the last commit, if no acknowledged commit is missing.
pub(crate) fn check<E: Engine>(engine: &E, acknowledged: Version) -> Result<Version, LogError> {
    let position = acknowledged.position;
    let (last, found) = panics::reading("reading the end of the log", || {
        let last = engine.last()?;
        let mut found = None;
        if (Position::START.next()..=last.position).contains(&position) {
            engine.visit(position.before(), position, &mut |record| {
                found = record.id;
                ControlFlow::Break(())
            })?;
        }
        Ok((last, found))
    })?;
    high_water_mark::check_nothing_is_lost(acknowledged, last.position, found)?;
    Ok(last)
}

/// Closes an engine. A panic while it is dropped becomes an error.
pub(crate) fn close<E: Engine>(engine: E, mode: CloseMode) -> Result<(), LogError> {
    panics::writing("closing the log", || engine.close(mode))
}

/// Closes an engine that is not used any more, and leaves its files as they are. An error is expected, because the
/// engine may have failed before.
pub(crate) fn discard<E: Engine>(engine: E) {
    if let Err(error) = close(engine, CloseMode::LeaveFiles) {
        tracing::debug!(target: "petstore::storage", %error, "cannot close the engine");
    }
}
