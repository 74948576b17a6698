//! `petstore openapi`: prints the OpenAPI document without serving it.

use adapters::http;

use crate::{config::AddressArguments, output};

/// Prints the document.
pub(crate) fn run(arguments: &AddressArguments) -> anyhow::Result<()> {
    output::print_document(http::document(&arguments.site()).as_bytes())
}
