//! The trait that an embedded storage engine implements.

use std::{
    io,
    path::{Path, PathBuf},
};

use application::ports::{LogError, Position, Record, Version};

use super::{copy::StoreCopy, layout::Layout, read_only::FoundRecords, reading::Records};

/// A storage engine that keeps its files on this machine. Its methods may block: they are called on blocking threads.
/// Those that open, read, write or close may panic: the panic becomes an error.
///
/// One thread calls [`append`](Self::append) and [`maintain`](Self::maintain) while other threads read. After an error
/// or a panic in either method, the engine must keep serving reads until it is closed and reopened.
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

    /// Opens a log read-only, without changing its files. The default opens a copy.
    fn open_to_read(layout: &Layout, acknowledged: Version) -> Result<(Self, Option<StoreCopy>), LogError> {
        open_copy(layout, acknowledged)
    }

    /// Creates missing files, and returns when everything in the log is durable. Called once the log is known to be
    /// complete.
    fn prepare(&self, layout: &Layout) -> Result<(), LogError>;

    /// Returns the last commit, or [`Version::START`] for an empty log.
    fn last(&self) -> Result<Version, LogError>;

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

    /// Wakes threads that hang inside the engine after a failed write. Must not block.
    fn unblock(&self) {}

    /// Returns the settings, with their values, on which the durability of a stored record depends.
    fn durability_settings(&self) -> Vec<(&'static str, String)>;

    /// Closes the engine. The default drops it.
    fn close(self, _mode: CloseMode) -> Result<(), LogError> {
        Ok(())
    }

    /// Finds every readable record of a store that may be damaged, without changing the store. The default opens a copy
    /// and reads up to the first damage.
    fn salvage(layout: &Layout, _acknowledged: Option<Version>) -> Result<FoundRecords, LogError> {
        let copy = StoreCopy::for_salvage::<Self>(layout)?;
        let engine = Self::open(&copy.layout, Version::START)?;
        let last = engine.last()?.position;
        Ok(FoundRecords { records: Box::new(engine), last, copy: Some(copy) })
    }
}

/// Opens a copy of the log in the temporary directory.
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
    /// After successful commits: leave as little work as possible to the next startup.
    Checkpoint,
    /// After an error, or if nothing was stored: leave the files unchanged.
    LeaveFiles,
}
