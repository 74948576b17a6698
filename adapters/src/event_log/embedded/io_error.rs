//! What a file system error means for the log, and how to get an error instead of a signal.

use std::io;

use application::ports::{Fault, LogError};
use rustix::process::Signal;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

/// Turns an error of the system while it was `doing` something into one of the log.
pub fn io_error(doing: &str) -> impl Fn(io::Error) -> LogError {
    move |error| {
        let (fault, what_to_do) = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (Fault::Full, "the disk is full; free some space")
            }
            io::ErrorKind::FileTooLarge => {
                (Fault::WriteFailed, "a limit on file sizes is in force; raise it (ulimit -f)")
            }
            io::ErrorKind::PermissionDenied => (
                Fault::WriteFailed,
                "give all files of the store to the user that runs the service (chown -R)",
            ),
            _ => (Fault::WriteFailed, "check the disk"),
        };
        LogError::new(fault, format!("{doing} failed ({error}): {what_to_do}"))
    }
}

/// A file-size limit sends a signal that ends the process. With a handler in place the write fails instead,
/// and a failed write is something the log can deal with. Without an async runtime nothing is done: offline
/// tools may end.
pub(super) fn survive_the_file_size_limit() {
    if Handle::try_current().is_ok() {
        // The handler stays for as long as the process runs, though nobody listens.
        if let Err(error) = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) {
            tracing::warn!("a file-size limit would end this process: {error}");
        }
    }
}
