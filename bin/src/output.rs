//! Prints lines to standard output and standard error. A closed pipe is not an error here, while `println!`
//! would panic.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use anyhow::Context as _;

/// Prints a whole document to standard output.
pub(crate) fn print_document(document: &[u8]) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(document) {
        // The reader, for example `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Prints one line to standard output.
pub(crate) fn print_line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints one line to standard error.
pub(crate) fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
