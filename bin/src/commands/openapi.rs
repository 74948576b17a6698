//! `petstore openapi`: prints the OpenAPI document without serving it.

use std::io::{self, Write as _};

use adapters::http;
use anyhow::Context as _;

use crate::config::AddressArguments;

/// Prints the document.
pub(crate) fn run(arguments: &AddressArguments) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(http::document(&arguments.site()).as_bytes()) {
        // The reader, for example `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the document to standard output"),
    }
}
