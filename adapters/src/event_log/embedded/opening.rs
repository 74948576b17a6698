//! From a path to an open log, at the start and after an error: the log is neither served nor changed before
//! it is known to be complete.

use std::{fs::File, path::Path};

use application::ports::{LogError, Version};

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

/// A store that this process has to itself, as long as it holds the lock.
pub(super) struct LockedStore {
    pub(super) layout: Layout,
    pub(super) mark: HighWaterMark,
    /// Whether it was created just now.
    pub(super) is_new: bool,
    _lock: File,
}

/// An engine whose log has lost nothing.
pub(super) struct OpenedEngine<E> {
    pub(super) engine: E,
    pub(super) last: Version,
    pub(super) files: OpenFiles,
}

/// Takes the lock and opens the mark. The mark is created before anything else, so a log without a mark has lost it.
pub(super) fn open_store<E: Engine>(path: &Path) -> Result<LockedStore, LogError> {
    let layout = E::layout(path);
    layout.check_kind()?;
    let exists = || {
        // Before the engine looks for itself: it may follow links.
        E::files(&layout).map_err(|error| layout.rejected(&format!("cannot be opened ({error})")))?;
        panics::reading("looking for the log", || E::exists(&layout))
    };
    if layout.path.is_file() && !layout.lock.exists() {
        // A file of another kind is refused before a lock is left beside it.
        exists()?;
    }
    let lock = layout.lock()?;
    E::files(&layout).map_err(|error| layout.rejected(&format!("cannot be opened ({error})")))?;
    let (mark, is_new) = match HighWaterMark::open(&layout.mark)? {
        Some(mark) => (mark, false),
        None if exists()? => return Err(high_water_mark::missing(&layout.mark)),
        None => (HighWaterMark::create(&layout.mark).map_err(io_error("creating the store"))?, true),
    };
    Ok(LockedStore { layout, mark, is_new, _lock: lock })
}

/// Opens the engine once everything in it is durable and nothing is missing. No other engine may be open on the files.
///
/// After a failed write or sync the files are first compared with the disk: a commit that is stored on top of data
/// which only the cache has would be lost with it.
pub(super) fn open_engine<E: Engine>(store: &LockedStore) -> Result<OpenedEngine<E>, LogError> {
    let not_synced = &store.layout.not_synced;
    try_to_open(store).inspect_err(|error| failed_sync::write_marker_after(error.fault, not_synced))
}

fn try_to_open<E: Engine>(
    LockedStore { layout, mark, .. }: &LockedStore,
) -> Result<OpenedEngine<E>, LogError> {
    let not_synced = io_error("writing the log to the disk");
    space::make_room_to_open(&layout.directory, &layout.ballast);
    let distrusted = layout.has_failed_sync_marker();
    if distrusted {
        E::files(layout).and_then(|files| failed_sync::resolve(&files)).map_err(&not_synced)?;
    }
    // A process that was killed may have left its last writes in the cache of the system.
    E::files(layout).and_then(|files| sync_files(&layout.directory, &files)).map_err(&not_synced)?;
    let doing = format!("opening the store {}", layout.path.display());
    let engine = panics::reading(&doing, || E::open(layout, mark.mark()))?;
    let checked = check(&engine, mark.mark()).and_then(|last| {
        panics::writing("preparing the log", || engine.prepare(layout))?;
        sync_directory(&layout.directory).map_err(&not_synced)?;
        if distrusted {
            failed_sync::remove_marker(&layout.not_synced).map_err(&not_synced)?;
        }
        let files = OpenFiles::new((&layout.mark, mark.file()), E::record_files(layout))?;
        Ok((last, files))
    });
    match checked {
        Ok((last, files)) => Ok(OpenedEngine { engine, last, files }),
        Err(error) => {
            close(engine, CloseMode::LeaveFiles).unwrap_or_else(|error| tracing::debug!("{error}"));
            Err(error)
        }
    }
}

/// The last commit, once nothing is missing that was acknowledged.
pub(crate) fn check<E: Engine>(engine: &E, acknowledged: Version) -> Result<Version, LogError> {
    let (last, found) = panics::reading("reading the end of the log", || {
        Ok((engine.last()?, engine.commit_at(acknowledged.position)?))
    })?;
    high_water_mark::check_nothing_is_lost(acknowledged, last.position, found)?;
    Ok(last)
}

/// Closes an engine, which may panic while it is dropped.
pub(crate) fn close<E: Engine>(engine: E, mode: CloseMode) -> Result<(), LogError> {
    panics::writing("closing the log", || engine.close(mode))
}
