//! What an error of SQLite means for the log.

use application::ports::{Fault, LogError};
use rusqlite::{Error, ErrorCode};
use rustix::process::{Resource, getrlimit};

/// SQLite failed while it was `doing` something.
pub(super) fn explain(doing: &str, error: &Error) -> LogError {
    let (fault, what_to_do) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Fault::Full, "the disk is full; free some space"),
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
        // SQLite does not say why a write has failed.
        Some(_) if getrlimit(Resource::Fsize).current.is_some() => {
            (Fault::WriteFailed, "check the disk, or a limit on file sizes is in force; raise it (ulimit -f)")
        }
        Some(_) => (Fault::WriteFailed, "check the disk"),
    };
    LogError::new(fault, format!("{doing} failed ({error}): {what_to_do}"))
}
