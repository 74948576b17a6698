//! The way to an open store, at the start and after a fault: nothing is served before it is known to be
//! whole.

use std::path::Path;

use application::ports::{LogError, Position};

use super::{engine::Engine, folder::Folder, rehearsal};
use crate::event_log::{
    disk::io_trouble,
    embedded::{
        failed_sync,
        high_water::{self, HighWater, Mark},
        space,
    },
};

/// Which stores may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// Any; a missing one is made.
    OrCreate,
    /// Only one that exists.
    Existing,
}

/// Opens the folder and the mark. The mark is made before anything else of a store, so who has records and no
/// mark has lost it.
pub(super) fn open_folder(path: &Path, opening: Opening) -> Result<(Folder, HighWater), LogError> {
    let folder = match opening {
        Opening::OrCreate => Folder::open_or_create(path)?,
        Opening::Existing => Folder::open_existing(path)?,
    };
    let path = folder.mark();
    if let Some(mark) = HighWater::open(&path)? {
        return Ok((folder, mark));
    }
    if folder.records().exists() {
        return Err(high_water::missing(&path));
    }
    let made = HighWater::create(&path).and_then(|mark| folder.settle().map(|()| mark));
    let mark = made.map_err(|error| io_trouble("making the store", &error))?;
    Ok((folder, mark))
}

/// Opens sled, and returns it with its last commit once everything in it is durable and nothing is missing.
pub(super) fn open_engine(folder: &Folder, mark: &HighWater) -> Result<(Engine, Mark), LogError> {
    try_to_open(folder, mark)
        .inspect_err(|error| failed_sync::declare_after(error.fault, &folder.suspicion()))
}

fn try_to_open(folder: &Folder, mark: &HighWater) -> Result<(Engine, Mark), LogError> {
    let trouble = |error| io_trouble("bringing the log to the disk", &error);
    if !folder.records().exists() {
        // sled would make a new file in the place of a lost one.
        mark.check(Position::START, None)?;
    }
    space::make_room_to_open(folder.path(), &folder.ballast());
    folder.remove_unfinished().map_err(trouble)?;
    let distrusted = failed_sync::is_declared(&folder.suspicion());
    if distrusted {
        folder.engine_files().and_then(|files| failed_sync::resolve(&files)).map_err(trouble)?;
    }
    rehearsal::rehearse_if_odd(folder, mark)?;
    let engine = Engine::open(&folder.engine(), folder.path())?;
    let checked = engine.check(mark).and_then(|tail| {
        folder.settle().map_err(trouble)?;
        if distrusted {
            failed_sync::withdraw(&folder.suspicion()).map_err(trouble)?;
        }
        Ok(tail)
    });
    match checked {
        Ok(tail) => Ok((engine, tail)),
        Err(error) => {
            engine.close();
            Err(error)
        }
    }
}
