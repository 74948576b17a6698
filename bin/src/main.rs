//! The program `petstore`.

mod commands;

use clap::Parser;

#[derive(Parser)]
#[command(version)]
enum Command {
    /// Manages API keys
    #[command(subcommand)]
    Keys(commands::keys::KeysCommand),
}

fn main() -> std::process::ExitCode {
    let Command::Keys(command) = Command::parse();
    match commands::keys::run(command) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
