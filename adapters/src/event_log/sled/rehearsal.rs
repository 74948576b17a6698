//! Opening an odd store on a copy first, so that the store stays as it is if it is refused.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
};

use application::ports::{LogError, Position, ReadBound};

use super::{Sled, inspect};
use crate::event_log::{
    disk::{FOLDER_MODE, io_trouble},
    embedded::{Closing, Engine as _, Layout, Mark, check, close, copy_files, read_within, space},
};

/// Refuses a store that has lost something, with all its files untouched.
///
/// Without room for a copy there is no rehearsal: a store that was hit by a power cut on a full disk opens, and one that
/// was damaged on a full disk is refused too, but sled may have overwritten what follows the damage.
pub(super) fn rehearse_if_odd(layout: &Layout, acknowledged: Mark) -> Result<(), LogError> {
    let io_error = |error| io_trouble("looking at the log before opening it", &error);
    let Some(at) = inspect::first_oddity(layout, acknowledged).map_err(io_error)? else { return Ok(()) };
    tracing::info!(
        "the log {} was not closed cleanly (byte {at}): trying it on a copy",
        layout.path.display()
    );
    let copy = Copy { path: layout.folder.join("rehearsal") };
    match copy.make(layout) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!("there is no room for a copy of the log: opening it as it is");
            return Ok(());
        }
        Err(error) => return Err(io_error(error)),
    }
    let engine = Sled::open_in(&copy.path)?;
    let outcome = check(&engine, acknowledged).and_then(|last| read_through(&engine, last.position));
    close(engine, Closing::AsIs).unwrap_or_else(|error| tracing::debug!("{error}"));
    outcome
}

/// Every record is there. What is in them is for their reader to check.
fn read_through(engine: &Sled, last: Position) -> Result<(), LogError> {
    let mut after = Position::START;
    while let Some(record) = read_within(engine, after, last, ReadBound::BATCH)?.last() {
        after = record.position;
    }
    Ok(())
}

/// A copy of sled's files, on the disk of the store, that goes away by itself.
struct Copy {
    path: PathBuf,
}

impl Copy {
    fn make(&self, layout: &Layout) -> io::Result<()> {
        // A process that was killed may have left one.
        self.remove()?;
        let files = Sled::files(layout)?;
        let size = files.iter().try_fold(0, |size, file| io::Result::Ok(size + file.metadata()?.len()))?;
        space::check_room_for_copy(&layout.folder, size)?;
        DirBuilder::new().mode(FOLDER_MODE).create(&self.path)?;
        copy_files(&files, &super::folder(layout), &self.path)
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!("the copy {} could not be removed: {error}", self.path.display());
        }
    }
}
