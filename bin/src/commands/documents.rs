//! `petstore openapi`, `petstore completions` and `petstore man`: print generated documents.

use std::path::Path;

use adapters::http;
use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{
    config::{AddressArguments, Command},
    output,
};

pub(crate) fn openapi(arguments: &AddressArguments) -> anyhow::Result<()> {
    output::print_document(http::document(&arguments.http_settings()).as_bytes())
}

pub(crate) fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Command::command(), "petstore", &mut script);
    output::print_document(&script)
}

/// Prints the manual page, or writes the pages of all commands into a directory.
pub(crate) fn man(directory: Option<&Path>) -> anyhow::Result<()> {
    // There is no page for the command that prints help.
    let command = Command::command().disable_help_subcommand(true);
    if let Some(directory) = directory {
        return clap_mangen::generate_to(command, directory)
            .with_context(|| format!("cannot write the manual pages into {}", directory.display()));
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page).expect("memory takes every write");
    output::print_document(&page)
}
