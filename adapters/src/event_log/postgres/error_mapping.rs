//! What an error of PostgreSQL means for the log.

use std::{error::Error as _, io};

use application::ports::{AppendError, Fault, LogError};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

/// No session came about.
pub(super) fn connect_error(server: &str, error: &Error) -> LogError {
    if is_standby(error) {
        let detail = format!(
            "PostgreSQL at {server} is a standby or read-only; name the primary, or all servers, in the URL"
        );
        return LogError::new(Fault::Unreachable, detail);
    }
    let detail = format!("PostgreSQL at {server} cannot be reached: {}", describe(error));
    LogError::new(if may_pass(error) { Fault::Unreachable } else { Fault::CannotOpen }, detail)
}

/// Something that is no append failed.
pub(super) fn query_error(server: &str, error: &Error) -> LogError {
    let fault = match error.code() {
        None => Fault::Unreachable,
        Some(code) => match class(code) {
            "XX" => Fault::Damaged,
            "25" | "28" | "3D" | "3F" | "42" => Fault::CannotOpen,
            _ => Fault::Unreachable,
        },
    };
    LogError::new(fault, format!("PostgreSQL at {server} failed: {}", describe(error)))
}

/// An append failed. Unless the server says that it rolled back, nobody knows what became of it.
pub(super) fn append_error(server: &str, error: &Error) -> AppendError {
    let rolled_back = error.as_db_error().filter(|error| {
        // A session that ends, for whatever reason, may have committed before.
        !matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
    });
    let fault = match rolled_back.map(DbError::code) {
        Some(code) if *code == SqlState::DISK_FULL => Fault::Full,
        Some(code) if class(code) == "54" => Fault::TooLarge,
        Some(code) if matches!(class(code), "22" | "23" | "25" | "42" | "53") => Fault::WriteFailed,
        Some(_) | None => {
            let detail =
                format!("PostgreSQL at {server} was lost while it stored a commit: {}", describe(error));
            return AppendError::Unclear(LogError::new(Fault::Unreachable, detail));
        }
    };
    let what_to_do = if is_read_only(error) { "; name the primary, or all servers, in the URL" } else { "" };
    let detail = format!("PostgreSQL at {server} refused a commit: {}{what_to_do}", describe(error));
    AppendError::NotStored(LogError::new(fault, detail))
}

/// Whether the server can be read but not written to.
pub(super) fn is_read_only(error: &Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// No server gave a session: if any of them may do so later, that is what counts.
pub(super) fn combined(errors: Vec<LogError>) -> LogError {
    let fault = if errors.iter().any(|error| error.fault == Fault::Unreachable) {
        Fault::Unreachable
    } else {
        errors.first().map_or(Fault::CannotOpen, |error| error.fault)
    };
    let details: Vec<_> = errors.into_iter().map(|error| error.detail).collect();
    LogError::new(fault, details.join("; "))
}

/// The error with its causes. None of them holds a password: neither the server nor its driver repeats one.
pub(super) fn describe(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

fn class(code: &SqlState) -> &str {
    code.code().get(..2).unwrap_or_default()
}

/// A server that was asked for a session that can write, and has none to give.
fn is_standby(error: &Error) -> bool {
    io_cause(error).is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether trying again may help: the line or the server is down, as opposed to a session that is refused.
fn may_pass(error: &Error) -> bool {
    if let Some(code) = error.code() {
        return !matches!(class(code), "28" | "3D" | "42");
    }
    error.is_closed() || io_cause(error).is_some_and(|cause| !is_tls(cause))
}

/// A handshake that failed: the other side is not whom we trust, or speaks no TLS that we know.
fn is_tls(error: &io::Error) -> bool {
    error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()).is_some()
}

fn io_cause(error: &Error) -> Option<&io::Error> {
    error.source()?.downcast_ref()
}
