//! `petstore log`: looks into a log, moves whole histories and saves damaged ones, without serving them.

mod moving;
mod salvage;
mod stat;
mod tell;
mod verify;
mod walk;

use crate::config::LogCommand;

#[tokio::main]
pub(crate) async fn run(command: LogCommand) -> anyhow::Result<()> {
    match command {
        LogCommand::Stat(argument) => stat::run(&argument.store).await,
        LogCommand::Verify(argument) => verify::run(&argument.store).await,
        LogCommand::Export(argument) => moving::export(&argument.store).await,
        LogCommand::Import { file, target } => moving::import(&file, &target.store).await,
        LogCommand::Copy { from, to } => moving::copy(&from, &to).await,
        LogCommand::Salvage { from, to } => salvage::run(&from, &to).await,
        LogCommand::Tail { after, source } => moving::tail(&source.store, after).await,
    }
}
