//! `petstore man`: prints the manual page, or writes the pages of all commands.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_mangen::Man;

use crate::{config::Cli, output};

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Write petstore.1 and one page for each subcommand into this directory instead of printing petstore.1.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

/// Prints or writes the pages.
pub(crate) fn run(arguments: &ManArguments) -> anyhow::Result<()> {
    // There is no page for the command that prints help.
    let command = Cli::command().disable_help_subcommand(true);
    if let Some(directory) = &arguments.dir {
        return clap_mangen::generate_to(command, directory)
            .with_context(|| format!("cannot write the manual pages into {}", directory.display()));
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page).expect("memory takes every write");
    output::print_document(&page)
}
