//! What embedded engines ask of the file system: private files, and errors that say what to do.

use std::io;

use application::ports::{Fault, LogError};
use rustix::process::Signal;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

pub(crate) use crate::private_files::{
    FILE_MODE, FOLDER_MODE, create_file, create_folders, folder_of, sync_folder,
};

/// An error of the system while something was done with a file of the store.
pub(crate) fn io_trouble(doing: &str, error: &io::Error) -> LogError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            LogError::new(Fault::Full, format!("{doing} failed ({error}): the disk is full; free some space"))
        }
        io::ErrorKind::FileTooLarge => LogError::new(
            Fault::WriteFailed,
            format!("{doing} failed ({error}): a limit on file sizes is in force; raise it (ulimit -f)"),
        ),
        _ => LogError::new(Fault::WriteFailed, format!("{doing} failed ({error}): check the disk")),
    }
}

/// A file-size limit sends a signal that ends the process. With a handler in place the write fails instead,
/// and a failed write is something the log can deal with. Without an async runtime nothing is done: offline
/// tools may end.
pub(crate) fn survive_the_file_size_limit() {
    if Handle::try_current().is_ok() {
        // The handler stays for as long as the process runs, though nobody listens.
        if let Err(error) = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) {
            tracing::warn!("a file-size limit would end this process: {error}");
        }
    }
}
