//! Prints to standard output and standard error. Unlike `println!`, it does not panic on a closed pipe. Any other error
//! from standard output is remembered, and the command fails with it at the end; errors from standard error are ignored.

use std::{
    env,
    fmt::Display,
    fs,
    io::{self, IsTerminal, Write as _},
    sync::OnceLock,
};

use anyhow::bail;
use clap::builder::styling::{AnsiColor, Style};

/// The first error from writing to standard output.
static FIRST_ERROR: OnceLock<io::Error> = OnceLock::new();

pub(crate) fn print_document(document: &[u8]) -> anyhow::Result<()> {
    record(io::stdout().lock().write_all(document));
    check()
}

pub(crate) fn print_line(line: impl Display) {
    record(writeln!(io::stdout(), "{line}"));
}

/// Whether text for this stream may have colours (no-color.org).
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A verdict for standard output. On a terminal it has this colour.
pub(crate) fn verdict(text: impl Display, colour: AnsiColor) -> String {
    let style = if has_colours(&io::stdout()) { colour.on_default() } else { Style::new() };
    format!("{style}{text}{style:#}")
}

/// Fails if something could not be printed to standard output.
pub(crate) fn check() -> anyhow::Result<()> {
    record(io::stdout().flush());
    match FIRST_ERROR.get() {
        Some(error) => bail!("cannot write to {}: {error}", destination()),
        None => Ok(()),
    }
}

/// The destination of standard output: the path of a file, if it is one.
pub(crate) fn destination() -> String {
    // For a pipe or a socket, the link reads `pipe:[1234]`, which is not a path.
    let target = fs::read_link("/proc/self/fd/1").ok().filter(|target| target.is_absolute());
    target.map_or_else(|| "standard output".to_owned(), |file| file.display().to_string())
}

/// The text, quoted if a shell would change it, also inside double quotes and a command substitution.
pub(crate) fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

pub(crate) fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn record(written: io::Result<()>) {
    // A broken pipe is not an error: the reader, for example `head`, has read enough.
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = FIRST_ERROR.set(error);
    }
}
