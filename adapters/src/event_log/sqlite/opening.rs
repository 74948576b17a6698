//! The way to an open log, at the start and after a fault: nothing is served before it is known to be whole, and
//! nothing is changed before that.

use application::ports::{Durability, LogError, Position};

use super::{
    engine::{Content, Engine},
    files::Files,
    reader::Reader,
};
use crate::event_log::{
    disk::io_trouble,
    embedded::{
        failed_sync,
        high_water::{self, HighWater, Mark},
        space,
    },
};

/// A log that has lost nothing.
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) reader: Reader,
    pub(super) durability: Durability,
    pub(super) tail: Mark,
}

/// Opens the mark. It is made before the table, so whoever has a table and no mark has lost it.
pub(super) fn open_mark(files: &Files) -> Result<HighWater, LogError> {
    let path = files.mark();
    if let Some(mark) = HighWater::open(&path)? {
        return Ok(mark);
    }
    let is_lost =
        if files.is_empty() { files.waiting() > 0 } else { Engine::connect(files)?.1 == Content::Log };
    if is_lost {
        return Err(high_water::missing(&path));
    }
    let made = HighWater::create(&path).and_then(|mark| files.sync_folder().map(|()| mark));
    made.map_err(|error| io_trouble("making the log", &error))
}

/// Opens the database, and makes sure that everything in it is durable and nothing is missing. Nobody may have
/// it open.
///
/// After a fault the database and the write-ahead log are first brought to the disk and compared with it. A
/// commit after one that only the cache has would be lost with it, and so would one that was moved into pages
/// of the database which only the cache has, as soon as the write-ahead log is begun anew.
pub(super) fn open_engine(files: &Files, mark: &mut HighWater) -> Result<Opened, LogError> {
    try_to_open(files, mark).inspect_err(|error| failed_sync::declare_after(error.fault, &files.suspicion()))
}

fn try_to_open(files: &Files, mark: &mut HighWater) -> Result<Opened, LogError> {
    let trouble = |error| io_trouble("bringing the log to the disk", &error);
    if files.is_empty() {
        // SQLite would begin anew, and delete what waits beside a lost database.
        mark.check(Position::START, None)?;
    }
    space::make_room_to_open(files.database(), &files.ballast());
    let distrusted = failed_sync::is_declared(&files.suspicion());
    if distrusted {
        failed_sync::resolve(&files.parts()).map_err(trouble)?;
    }
    files.sync().map_err(trouble)?;
    let (engine, content) = Engine::connect(files)?;
    let (tail, found) = match content {
        Content::Nothing => (Mark::START, None),
        Content::Log => (engine.tail()?, engine.commit_at(mark.mark().position)?),
    };
    mark.check(tail.position, found)?;
    engine.prepare(content)?;
    // SQLite does not care whether the name of its write-ahead log reaches the disk.
    files.sync_folder().map_err(trouble)?;
    if distrusted {
        failed_sync::withdraw(&files.suspicion()).map_err(trouble)?;
    }
    if tail != mark.mark() {
        let raised = mark.raise(tail).and_then(|()| mark.sync());
        raised.map_err(|error| io_trouble("writing the high-water mark", &error))?;
    }
    let (reader, durability) = (Reader::connect(files.database())?, engine.durability(files.database())?);
    Ok(Opened { engine, reader, durability, tail })
}
