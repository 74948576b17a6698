//! The `petstore` binary. [`config`] parses the arguments, [`commands`] carries them out, and [`wire`] connects the
//! adapters.

mod commands;
mod config;
mod descriptors;
mod engines;
mod file_owner;
mod output;
mod service_manager;
mod service_output;
mod state_recorder;
mod stop_signals;
mod store_url;
mod wire;

use std::process::ExitCode;

use commands::{documents, log::Incomplete};
use config::Command;
use mimalloc::MiMalloc;

// glibc's allocator would cost a third of the create rate, because axum makes many small allocations. Huge pages are
// off, so that freed memory is returned to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The exit status of a salvage that has stored only a part of the log.
const INCOMPLETE: u8 = 3;

fn main() -> ExitCode {
    let outcome = match config::parse() {
        // Prints its own errors through a background thread, so that a stalled reader cannot block the exit.
        Command::Serve(arguments) => return commands::serve::run(*arguments),
        Command::Keys { command, keys } => commands::keys::run(command, &keys),
        Command::Log(command) => commands::log::run(command),
        Command::Openapi(arguments) => documents::openapi(&arguments),
        // Has its own exit codes.
        Command::Health(arguments) => return commands::health::run(arguments),
        Command::Completions { shell } => documents::completions(shell),
        Command::Man { dir } => documents::man(dir.as_deref()),
    };
    match outcome.and_then(|()| output::check()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(format_args!("petstore: {error:#}"));
            if error.is::<Incomplete>() { INCOMPLETE.into() } else { ExitCode::FAILURE }
        }
    }
}
