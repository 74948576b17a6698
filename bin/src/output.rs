//! Lines for the people or programs that read the output of a command. A reader that has gone away is not an error:
//! `println!` would panic on a closed pipe.

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
