//! Words for whoever reads the output. Who has stopped reading must not stop the program: a closed pipe is no
//! failure of ours, and `println!` would make it a panic.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// One line on standard output.
pub(crate) fn line(words: impl Display) {
    let _ = writeln!(io::stdout(), "{words}");
}

/// One line on standard error.
pub(crate) fn trouble(words: impl Display) {
    let _ = writeln!(io::stderr(), "{words}");
}
