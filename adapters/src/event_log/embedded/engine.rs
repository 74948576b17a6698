//! The traits that an embedded storage engine implements, and the checks of every log that is opened.

use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use application::ports::{Fault, LogError, Position, ReadBound, Record, StoredRecord, Version};

use super::{high_water_mark::check_nothing_is_lost, layout::Layout, panics};

/// Receives one record after another. Breaks to stop.
pub type Visit<'a> = dyn FnMut(StoredRecord) -> ControlFlow<()> + 'a;

/// A source of records: an engine, or salvaged files.
pub trait Records: Send + Sync + 'static {
    /// Returns the last commit, or [`Version::START`] if there is none.
    fn last(&self) -> Result<Version, LogError>;

    /// Passes records to `visit`, oldest first, until `visit` breaks: those after `after`, up to and including `last`. The
    /// record at `last` exists.
    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError>;

    /// See [`LogSource::skip`](application::ports::LogSource::skip). Must not block.
    fn skip(&self, damaged: Position) -> Position {
        damaged.next()
    }
}

/// A storage engine that keeps its files on this machine. Its methods may block: they are called on blocking threads.
/// Those that open, read, write or close may panic: the panic becomes an error.
///
/// One thread calls [`append`](Self::append) and [`maintain`](Self::maintain) while other threads read. After an error
/// or a panic in either method, the engine must keep serving reads until it is closed and reopened.
///
/// Dropping the engine closes it. After an error, or if nothing was stored, that must leave the files unchanged.
pub trait Engine: Records + Sized {
    /// The scheme of its URLs.
    const NAME: &'static str;

    /// Returns the paths of the store that an operator has named `path`.
    fn layout(path: &Path) -> Layout;

    /// Whether a log exists, even an empty one. Rejects other kinds of files. Changes nothing.
    fn exists(layout: &Layout) -> Result<bool, LogError>;

    /// Returns the existing files of the log. Called before the engine opens any of them. Rejects links where the
    /// engine would open or create a file or directory, because other users may have planted them.
    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>>;

    /// Returns the files that records are written to. All of them exist after [`prepare`](Self::prepare). If one is
    /// deleted, moved or replaced while the log is open, the log is closed permanently.
    fn record_files(layout: &Layout) -> Vec<PathBuf>;

    /// Opens the log, or prepares to create it. Must not change data that could be salvaged, because the check that the
    /// log reaches `acknowledged` comes later.
    fn open(layout: &Layout, acknowledged: Version) -> Result<Self, LogError>;

    /// Opens the log read-only, if that is possible without changing its files. Otherwise a copy is opened.
    fn open_in_place(_layout: &Layout) -> Result<Option<Self>, LogError> {
        Ok(None)
    }

    /// Creates missing files, and returns when everything in the log is durable. Called once the log is known to be
    /// complete.
    fn prepare(&self, layout: &Layout) -> Result<(), LogError>;

    /// Stores the records, the first of them at `first`, which follows the last stored one. Returns when all of them are
    /// durable. A crash may leave a prefix of them.
    ///
    /// [`Unreachable`](application::ports::Fault::Unreachable) and [`TooLarge`](application::ports::Fault::TooLarge)
    /// mean that nothing was written and the log is intact. After any other error, the log is closed and reopened.
    fn append(&self, first: Position, records: &[Record]) -> Result<(), LogError>;

    /// Does maintenance work. Called after every append, when its outcome has been reported.
    fn maintain(&self) -> Result<(), LogError> {
        Ok(())
    }

    /// Leaves as little work as possible to the next startup. Called before a log is closed to which records were
    /// appended, all of them without an error.
    fn checkpoint(&self) -> Result<(), LogError> {
        Ok(())
    }

    /// Wakes threads that hang inside the engine after a failed write. Must not block.
    fn unblock(&self) {}

    /// Returns the settings, with their values, on which the durability of a stored record depends.
    fn durability_settings(&self) -> Vec<(&'static str, String)>;

    /// Finds the readable records in the files of a store that may be damaged, without changing them. `None` if this
    /// engine has to open a [damaged copy](Self::open_damaged).
    fn salvage(
        _layout: &Layout,
        _acknowledged: Option<Version>,
    ) -> Result<Option<Box<dyn Records>>, LogError> {
        Ok(None)
    }

    /// Opens a copy of a store that may be damaged. Its records are read up to the first damage.
    fn open_damaged(copy: &Layout) -> Result<Self, LogError> {
        Self::open(copy, Version::START)
    }
}

/// Returns the last commit, if no acknowledged commit is missing.
pub(crate) fn check<E: Engine>(engine: &E, acknowledged: Version) -> Result<Version, LogError> {
    let last = panics::reading("reading the end of the log", || engine.last())?;
    let position = acknowledged.position;
    let mut found = None;
    if (Position::START.next()..=last.position).contains(&position) {
        found = read_within(engine, position.before(), position, ReadBound::ONE)?[0].id;
    }
    check_nothing_is_lost(acknowledged, last.position, found)?;
    Ok(last)
}

/// Closes an engine. A panic while it is dropped becomes an error.
pub(super) fn close<E: Engine>(engine: E) -> Result<(), LogError> {
    panics::writing("closing the log", || {
        drop(engine);
        Ok(())
    })
}

/// Closes an engine that is not used any more. An error is expected, because the engine may have failed before.
pub(crate) fn discard<E: Engine>(engine: E) {
    if let Err(error) = close(engine) {
        tracing::debug!(target: "petstore::storage", %error, "cannot close the engine");
    }
}

/// Returns the records after `after` up to `last`, without gaps and within `bound`. The records before an error are
/// returned first; the next read returns the error.
pub(crate) fn read_within(
    records: &dyn Records,
    after: Position,
    last: Position,
    bound: ReadBound,
) -> Result<Vec<StoredRecord>, LogError> {
    let mut found: Vec<StoredRecord> = Vec::new();
    if after >= last {
        return Ok(found);
    }
    let mut room = bound.bytes;
    let mut next = after.next();
    let visited = panics::reading("reading the log", || {
        records.visit(after, last, &mut |record| {
            if record.position != next {
                return ControlFlow::Break(());
            }
            next = next.next();
            room = room.saturating_sub(record.bytes.len());
            found.push(record);
            if found.len() < bound.records && room > 0 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    });
    match visited {
        _ if !found.is_empty() => Ok(found),
        Err(error) => Err(error),
        // A damaged page can hide records without an error.
        Ok(()) => Err(missing(next)),
    }
}

/// The error for a damaged record at `position`.
pub fn damaged(position: Position, what: &str) -> LogError {
    Fault::Damaged.error(format!("the commit at position {position} is damaged: {what}"))
}

/// The error for a missing record at `position`.
pub fn missing(position: Position) -> LogError {
    Fault::Damaged.error(format!("the commit at position {position} is missing"))
}
