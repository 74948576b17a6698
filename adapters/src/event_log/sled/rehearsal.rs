//! Opening an odd store on a copy first, so that the store stays as it is if the answer is no.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use application::ports::{LogError, Position, ReadBound};

use super::{
    engine::Engine,
    folder::{Folder, create_folder},
    inspect,
};
use crate::event_log::{
    disk::io_trouble,
    embedded::{high_water::HighWater, space},
};

/// Refuses a store that has lost something, with all its files untouched.
///
/// Without room for a copy there is no rehearsal: a store that was hit by a power cut on a full disk opens,
/// and one that was damaged on a full disk is refused too, but sled may have overwritten what follows the
/// damage.
pub(super) fn rehearse_if_odd(folder: &Folder, mark: &HighWater) -> Result<(), LogError> {
    let doing = "looking at the log before opening it";
    let odd = inspect::first_oddity(folder, mark.mark()).map_err(|error| io_trouble(doing, &error))?;
    let Some(at) = odd else { return Ok(()) };
    let copy = Copy { path: folder.rehearsal() };
    tracing::info!(
        "the log {} was not closed cleanly (byte {at}): trying it on a copy",
        folder.path().display()
    );
    match copy.make(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!("there is no room for a copy of the log: opening it as it is");
            return Ok(());
        }
        Err(error) => return Err(io_trouble(doing, &error)),
    }
    let engine = Engine::open(&copy.path, folder.path())?;
    let outcome = engine.check(mark).and_then(|tail| read_through(&engine, tail.position));
    engine.close();
    outcome
}

/// Every record is there. What is in them is for their reader to check.
fn read_through(engine: &Engine, head: Position) -> Result<(), LogError> {
    let mut last = Position::START;
    while let Some(record) = engine.read(last, head, ReadBound::BATCH)?.last() {
        last = record.position;
    }
    Ok(())
}

/// A copy of sled's files that goes away by itself.
struct Copy {
    path: PathBuf,
}

impl Copy {
    fn make(&self, folder: &Folder) -> io::Result<()> {
        remove(&self.path)?;
        let files = folder.engine_files()?;
        let mut size = 0;
        for file in &files {
            size += file.metadata()?.len();
        }
        space::check_room_for_copy(folder.path(), size)?;
        create_folder(&self.path)?;
        for file in &files {
            let name = file.file_name().expect("files of a folder have names");
            fs::copy(file, self.path.join(name))?;
        }
        Ok(())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!("the copy {} could not be removed: {error}", self.path.display());
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
