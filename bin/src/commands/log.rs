//! `petstore log`: looks into a log without serving it. One file for each command.

mod export;
mod salvage;
mod stat;
mod tell;
mod verify;
mod walk;

use crate::config::LogCommand;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(command: LogCommand) -> anyhow::Result<()> {
    match command {
        LogCommand::Stat(argument) => stat::run(&argument.store).await,
        LogCommand::Verify(argument) => verify::run(&argument.store).await,
        LogCommand::Export(argument) => export::run(&argument.store).await,
        LogCommand::Salvage(arguments) => salvage::run(&arguments).await,
    }
}
