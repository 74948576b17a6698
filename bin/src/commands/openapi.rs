//! `petstore openapi`: prints the interface for programs to read, without serving it.

use std::io::{self, Write as _};

use adapters::http;
use anyhow::Context as _;

use crate::config::AddressArguments;

/// Prints the document.
pub(crate) fn run(arguments: &AddressArguments) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(http::document(&arguments.site()).as_bytes()) {
        // Whoever reads, `head` for one, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the document to standard output"),
    }
}
