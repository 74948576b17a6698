//! The program `petstore`: arguments in [`config`], what they set in motion in [`commands`], which parts are
//! plugged together in [`wire`].

mod commands;
mod config;
mod say;
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
            say::trouble(format_args!("petstore: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
