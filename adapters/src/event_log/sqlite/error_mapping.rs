//! Maps SQLite errors to errors of the log.

use application::ports::{Fault, LogError};
use rusqlite::{Error, ErrorCode};
use rustix::process::{Resource, getrlimit};

/// Maps an error of SQLite that occurred while `doing` something.
pub(super) fn log_error(doing: &str) -> impl Fn(Error) -> LogError {
    move |error| {
        let (fault, what_to_do) = meaning(&error);
        fault.error(format!("{doing} failed ({error}): {what_to_do}"))
    }
}

fn meaning(error: &Error) -> (Fault, &'static str) {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Fault::Full, "the disk is full; free some space"),
        // Without a code, the query succeeded but a value has the wrong type.
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) | None => {
            let what_to_do = "the file is damaged, or not a petstore log; check the path (as a last resort, try \
                              .recover of the sqlite3 shell on a copy)";
            (Fault::Damaged, what_to_do)
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Fault::Unreachable, "another process holds the database; stop it")
        }
        Some(ErrorCode::TooBig) => (Fault::TooLarge, "make smaller commits"),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            (Fault::CannotOpen, "make the file and its directory writable by this user")
        }
        // SQLite does not say why a write has failed.
        Some(_) if getrlimit(Resource::Fsize).current.is_some() => {
            (Fault::WriteFailed, "check the disk, and the file size limit of the process (ulimit -f)")
        }
        Some(_) => (Fault::WriteFailed, "check the disk"),
    }
}
