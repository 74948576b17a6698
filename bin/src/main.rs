//! The program `petstore`. [`config`] parses the arguments, [`commands`] carries them out, and [`wire`] connects the
//! adapters.

mod background_writer;
mod commands;
mod config;
mod descriptors;
mod engines;
mod output;
mod service_manager;
mod store_url;
mod version;
mod wire;

use std::process::ExitCode;

use config::{Cli, Command};
use mimalloc::MiMalloc;

// axum makes many small allocations; with glibc's allocator they cost creates a third of their rate. Without huge pages,
// so that freed memory is returned to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let outcome = match Cli::from_arguments().command {
        // The service prints its own error: it must end even if nobody reads that line.
        Command::Serve(arguments) => return commands::serve::run(*arguments),
        Command::Keys(command) => commands::keys::run(command),
        Command::Log(command) => commands::log::run(command),
        Command::Openapi(arguments) => commands::openapi::run(&arguments),
        // Its exit code is the answer.
        Command::Health(arguments) => return commands::health::run(arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments),
        Command::Man(arguments) => commands::man::run(&arguments),
    };
    match outcome.and_then(|()| output::check()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(format_args!("petstore: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
