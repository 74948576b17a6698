//! Prints lines to standard output and standard error. A closed pipe is not an error here, while `println!`
//! would panic.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Prints one line to standard output.
pub(crate) fn print_line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints one line to standard error.
pub(crate) fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
