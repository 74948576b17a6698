//! Maps sled errors to errors of the log.

use std::io;

use application::ports::{Fault, LogError};

use crate::event_log::embedded::{io_error, one_line};

/// Maps an error of sled that occurred while `doing` something.
pub(super) fn log_error(doing: &str) -> impl Fn(::sled::Error) -> LogError {
    move |error| match error {
        ::sled::Error::Io(error) => io_error(doing)(original(error)),
        ::sled::Error::Corruption { .. } | ::sled::Error::CollectionNotFound(_) => {
            Fault::Damaged.error(format!("{doing} failed: the files of the storage engine are damaged"))
        }
        ::sled::Error::Unsupported(reason) => {
            Fault::CannotOpen.error(format!("{doing} failed: {}", one_line(&reason)))
        }
        ::sled::Error::ReportableBug(reason) => {
            Fault::WriteFailed.error(format!("{doing} failed: {}", one_line(&reason)))
        }
    }
}

/// Restores the system error, which sled passes on as text with its code.
fn original(error: io::Error) -> io::Error {
    let text = error.to_string();
    let code = text.split_once("code: ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    code.map_or(error, io::Error::from_raw_os_error)
}
