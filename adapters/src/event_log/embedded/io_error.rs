//! Maps file system errors to errors of the log, and turns a write over the file size limit into an error
//! instead of a fatal signal.

use std::io;

use application::ports::{Fault, LogError};
use rustix::process::Signal;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

use crate::private_files::is_full;

/// Maps a system error that occurred while `doing` something.
pub fn io_error(doing: &str) -> impl Fn(io::Error) -> LogError {
    move |error| {
        let (fault, what_to_do) = match error.kind() {
            _ if is_full(&error) => (Fault::Full, "the disk is full; free some space"),
            io::ErrorKind::FileTooLarge => {
                (Fault::WriteFailed, "the process has reached its file size limit; raise it (ulimit -f)")
            }
            io::ErrorKind::PermissionDenied => (
                Fault::WriteFailed,
                "make all files of the store owned and writable by the user that runs the service (chown -R, chmod -R u+rwX)",
            ),
            io::ErrorKind::WouldBlock => {
                (Fault::WriteFailed, "another process uses the files of the store; stop it")
            }
            _ => (Fault::WriteFailed, "check the disk"),
        };
        fault.error(format!("{doing} failed ({error}): {what_to_do}"))
    }
}

/// Makes a write beyond the file-size limit fail instead of killing the process with SIGXFSZ. The log handles a failed
/// write. Does nothing without an async runtime: offline tools may be killed.
pub(super) fn survive_the_file_size_limit() {
    if Handle::try_current().is_ok() {
        // The handler stays installed for the lifetime of the process. If it cannot be installed, reaching the limit kills
        // the process, as it does by default.
        let _ = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()));
    }
}
