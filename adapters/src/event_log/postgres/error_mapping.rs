//! Maps PostgreSQL errors to errors of the log.

use std::{error::Error as _, io, iter, time::Duration};

use application::ports::{AppendError, Fault, LogError};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

use crate::root_certificates;

/// The statement timeout of an append on the server, and how long any statement waits for a lock.
pub(super) const APPEND_LIMIT: Duration = Duration::from_secs(3);

/// The server is unreachable, or rejected the session.
pub(super) fn connect_error(server: &str, error: &Error) -> LogError {
    // The driver rejects a server whose sessions are read-only.
    if io_cause(error).is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied) {
        return unreachable_error(
            server,
            "is a standby or read-only; name the primary, or all servers, in the URL",
        );
    }
    let options = "sslrootcert=FILE, or use sslmode=disable if the network is trusted";
    if let Some(reason) = root_certificates::rejection(error, options) {
        return Fault::CannotOpen.error(format!("PostgreSQL at {server} cannot be used: {reason}"));
    }
    let (what, what_to_do) = match error.code().map(class) {
        Some("28") => ("rejected the session", "; check the user and the password, or the password file"),
        Some("3D") => ("rejected the session", "; create the database, or correct the URL"),
        Some(_) => ("rejected the session", ""),
        None if describe(error).contains("password missing") => {
            ("requires a password", "; add a line for this server to the password file, or set PGPASSWORD")
        }
        None if failed_handshake(error) => {
            ("cannot be reached", "; use sslmode=disable if the server has no TLS and the network is trusted")
        }
        None => ("cannot be reached", "; check the URL, and that the server is running"),
    };
    // A retry may help if the network or the server is down, as opposed to a rejected session.
    let is_temporary = match error.code().map(class) {
        Some(class) => !matches!(class, "28" | "3D" | "42"),
        None => error.is_closed() || (io_cause(error).is_some() && !failed_handshake(error)),
    };
    let fault = if is_temporary { Fault::Unreachable } else { Fault::CannotOpen };
    fault.error(format!("PostgreSQL at {server} {what}: {}{what_to_do}", describe(error)))
}

/// The server does not work at the moment.
pub(super) fn unreachable_error(server: &str, what: &str) -> LogError {
    Fault::Unreachable.error(format!("PostgreSQL at {server} {what}"))
}

pub(super) fn no_reply(server: &str, timeout: Duration) -> LogError {
    Fault::Unreachable.error(format!(
        "PostgreSQL at {server}: no reply within {timeout:?}; another session may hold a lock (see pg_stat_activity), or a \
         synchronous standby is missing (see pg_stat_replication)"
    ))
}

/// A statement other than an append failed.
pub(super) fn query_error(server: &str, error: &Error) -> LogError {
    let fault = match error.code() {
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => return no_reply(server, APPEND_LIMIT),
        None => Fault::Unreachable,
        Some(code) => match class(code) {
            "XX" => Fault::Damaged,
            "25" | "28" | "3D" | "3F" | "42" => Fault::CannotOpen,
            _ => Fault::Unreachable,
        },
    };
    fault.error(format!("PostgreSQL at {server} failed: {}", describe(error)))
}

/// An append failed. Unless the server reports a rollback, the commit may be stored.
pub(super) fn append_error(server: &str, error: &Error) -> AppendError {
    rejection(server, error).map_or_else(|| AppendError::Unclear(lost(server, error)), AppendError::NotStored)
}

pub(super) fn probe_error(server: &str, error: &Error) -> LogError {
    rejection(server, error).unwrap_or_else(|| lost(server, error))
}

/// The reason why the server rejected and rolled back a commit, or `None` if the outcome is unclear.
fn rejection(server: &str, error: &Error) -> Option<LogError> {
    let rolled_back = error.as_db_error().filter(|error| {
        // An error that ends the session does not rule out a commit.
        !matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
    });
    let fault = match rolled_back.map(DbError::code)? {
        code if *code == SqlState::DISK_FULL => Fault::Full,
        code if class(code) == "54" => Fault::TooLarge,
        code if matches!(class(code), "22" | "23" | "25" | "42" | "53") => Fault::WriteFailed,
        _ => return None,
    };
    let what_to_do = if is_read_only(error) { "; name the primary, or all servers, in the URL" } else { "" };
    Some(fault.error(format!("PostgreSQL at {server} rejected a commit: {}{what_to_do}", describe(error))))
}

fn lost(server: &str, error: &Error) -> LogError {
    match error.code() {
        Some(code) if [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED].contains(code) => {
            no_reply(server, APPEND_LIMIT)
        }
        _ => unreachable_error(server, &format!("was lost while it stored a commit: {}", describe(error))),
    }
}

pub(super) fn is_read_only(error: &Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// No server can be used. If one of them may recover, so may the log.
pub(super) fn combined(errors: Vec<LogError>) -> LogError {
    let is_temporary = errors.iter().any(|error| error.fault == Fault::Unreachable);
    let first = errors.first().map_or(Fault::CannotOpen, |error| error.fault);
    let details: Vec<_> = errors.into_iter().map(|error| error.detail).collect();
    (if is_temporary { Fault::Unreachable } else { first }).error(details.join("; "))
}

/// The error with its causes. Neither the server nor the driver repeats a password.
pub(super) fn describe(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |description, cause| format!("{description}: {cause}"))
}

fn class(code: &SqlState) -> &str {
    code.code().get(..2).unwrap_or_default()
}

/// Whether TLS is the cause: the server has none, its certificate is not trusted, or no common version was found.
fn failed_handshake(error: &Error) -> bool {
    error.to_string().starts_with("error performing TLS handshake") || root_certificates::is_tls_error(error)
}

fn io_cause(error: &Error) -> Option<&io::Error> {
    error.source()?.downcast_ref()
}
