//! Prints lines to standard output and standard error. A closed pipe is not an error here, while `println!`
//! would panic. Any other reason why standard output does not take everything makes the command fail at its end.

use std::{
    fmt::Display,
    fs,
    io::{self, Write as _},
    sync::OnceLock,
};

use anyhow::bail;

/// Why standard output did not take something.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a whole document to standard output.
pub(crate) fn print_document(document: &[u8]) -> anyhow::Result<()> {
    note(io::stdout().lock().write_all(document));
    check()
}

/// Prints one line to standard output.
pub(crate) fn print_line(line: impl Display) {
    note(writeln!(io::stdout(), "{line}"));
}

/// Fails if something could not be printed to standard output.
pub(crate) fn check() -> anyhow::Result<()> {
    note(io::stdout().flush());
    match FAILED.get() {
        Some(error) => bail!("cannot write to {}: {error}", destination()),
        None => Ok(()),
    }
}

/// Where standard output goes: the name of a file, if it is one.
pub(crate) fn destination() -> String {
    let target = fs::read_link("/proc/self/fd/1").ok().filter(|target| target.is_absolute());
    target.map_or_else(|| "standard output".to_owned(), |file| file.display().to_string())
}

/// Prints one line to standard error.
pub(crate) fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn note(written: io::Result<()>) {
    match written {
        // The reader, for example `head`, has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => drop(FAILED.set(error)),
        Ok(()) | Err(_) => {}
    }
}
