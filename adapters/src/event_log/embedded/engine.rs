//! What an embedded engine has to implement, and nothing else.

use std::{
    io,
    path::{Path, PathBuf},
};

use application::ports::{CommitId, LogError, Position, Record, Version};

use super::{copy::StoreCopy, layout::Layout, reading::Records, salvage::FoundRecords};

/// A storage engine in files of this machine. It may block, and it may panic: every call is made on a thread that may
/// wait, and a panic becomes an error.
///
/// One thread calls [`append`](Self::append) and [`maintain`](Self::maintain); others read meanwhile. After an error or a panic
/// of either, the engine goes on serving reads until it is closed and opened again.
pub trait Engine: Records + Sized {
    /// The scheme of its URLs.
    const NAME: &'static str;

    /// Where the files of the store that an operator calls `path` are.
    fn layout(path: &Path) -> Layout;

    /// Whether there is a log, even an empty one. Refuses files of another kind, and changes nothing.
    fn exists(layout: &Layout) -> Result<bool, LogError>;

    /// The files that hold the log, those that exist. Asked before the engine opens any of them: refuses a link where it
    /// would create or open a file or directory, since the program may run as root in a directory of another user.
    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>>;

    /// The files that records are written to; all of them exist once the log is prepared. If one is deleted, moved or
    /// replaced while the log is open, the log is closed for good.
    fn record_files(layout: &Layout) -> Vec<PathBuf>;

    /// Opens the log, or makes ready to create it. Changes nothing that could be salvaged: whether everything up to
    /// `acknowledged` is there is checked only afterwards.
    fn open(layout: &Layout, acknowledged: Version) -> Result<Self, LogError>;

    /// Opens a log that is only read, and changes nothing in its files: unless an engine knows better, a copy is opened.
    fn open_to_read(layout: &Layout, acknowledged: Version) -> Result<(Self, Option<StoreCopy>), LogError> {
        open_copy(layout, acknowledged)
    }

    /// Called once the log is known to be complete. Creates what is missing, and returns when everything that is in the
    /// log is durable.
    fn prepare(&self, layout: &Layout) -> Result<(), LogError>;

    /// The last commit; [`Version::START`] if there is none.
    fn last(&self) -> Result<Version, LogError>;

    /// Which commit is at `position`, if any.
    fn commit_at(&self, position: Position) -> Result<Option<CommitId>, LogError>;

    /// Stores the record at `position`, which follows the last one, and returns when it is durable.
    ///
    /// [`Unreachable`](application::ports::Fault::Unreachable) and [`TooLarge`](application::ports::Fault::TooLarge)
    /// mean that nothing was written and the log is sound; after any other error it is closed and opened again.
    fn append(&self, position: Position, record: &Record) -> Result<(), LogError>;

    /// Called after every append, when the caller was answered: the place for work that nobody waits for.
    fn maintain(&self) -> Result<(), LogError> {
        Ok(())
    }

    /// Wakes callers that hang inside the engine after a failed write, without waiting itself.
    fn unblock(&self) {}

    /// What was looked up to know that a stored record is durable: setting and value.
    fn durability_settings(&self) -> Vec<(&'static str, String)>;

    /// Closes the engine.
    fn close(self, mode: CloseMode) -> Result<(), LogError>;

    /// Looks for everything that can be read of a store that may be damaged. Changes nothing in it: unless an engine
    /// knows better, it is opened on a copy and read up to the first damage.
    fn salvage(layout: &Layout, _acknowledged: Option<Version>) -> Result<FoundRecords, LogError> {
        let (engine, copy) = open_copy::<Self>(layout, Version::START)?;
        let last = engine.last()?.position;
        Ok(FoundRecords { records: Box::new(engine), last, copy })
    }
}

/// Opens a copy of the log in the directory for temporary files.
pub fn open_copy<E: Engine>(
    layout: &Layout,
    acknowledged: Version,
) -> Result<(E, Option<StoreCopy>), LogError> {
    let copy = StoreCopy::temporary::<E>(layout)?;
    Ok((E::open(&copy.layout, acknowledged)?, Some(copy)))
}

/// How an engine is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// After commits that all succeeded: leave as little as possible for the next start.
    Checkpoint,
    /// After an error, or when nothing was stored: leave the files as they are.
    LeaveFiles,
}
