//! `petstore completions`: prints a completion script for a shell.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::{config::Cli, output};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell to complete commands in.
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(arguments: &CompletionsArguments) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "petstore", &mut script);
    output::print_document(&script)
}
