//! The program `petstore`. [`config`] parses the arguments, [`commands`] carries them out, and [`wire`] connects the
//! adapters.

mod commands;
mod config;
mod output;
mod store_url;
mod wire;

use std::process::ExitCode;

use clap::Parser as _;
use config::{Cli, Command};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::Keys(command) => commands::keys::run(command),
        Command::Log(command) => commands::log::run(command),
        Command::Openapi(arguments) => commands::openapi::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(format_args!("petstore: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
