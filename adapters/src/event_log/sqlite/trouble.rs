//! What an error of SQLite or of the system means for the log.

use std::io;

use application::ports::{Fault, LogError};
use rusqlite::{Error, ErrorCode};

/// SQLite failed while it was `doing` something.
pub(super) fn explain(doing: &str, error: &Error) -> LogError {
    let (fault, what_to_do) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            (Fault::Full, "the disk is full; free some space, and writing goes on by itself")
        }
        Some(ErrorCode::NotADatabase) => (
            Fault::Damaged,
            "the file is not a petstore log, or it is damaged; check the path, or restore a backup",
        ),
        // Without a code, SQLite was content but a value is not what was stored.
        Some(ErrorCode::DatabaseCorrupt) | None => (
            Fault::Damaged,
            "the file is damaged; restore the log from a backup, or salvage what is left into a new one",
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Fault::Unreachable, "another program holds the database; end it")
        }
        Some(ErrorCode::TooBig) => (Fault::TooLarge, "make smaller commits"),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            (Fault::CannotOpen, "make the file and its folder writable for this user")
        }
        Some(_) => (Fault::WriteFailed, "check the disk; the log is opened again by itself when it can be"),
    };
    LogError::new(fault, format!("{doing} failed ({error}): {what_to_do}"))
}

/// An error of the system while something was done with a file of the log.
pub(super) fn io_trouble(doing: &str, error: &io::Error) -> LogError {
    let (fault, what_to_do) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Fault::Full, "the disk is full; free some space, and writing goes on by itself")
        }
        io::ErrorKind::FileTooLarge => {
            (Fault::WriteFailed, "a limit on file sizes is in force; raise it (ulimit -f)")
        }
        _ => (Fault::WriteFailed, "check the disk; the log is opened again by itself when it can be"),
    };
    LogError::new(fault, format!("{doing} failed ({error}): {what_to_do}"))
}
