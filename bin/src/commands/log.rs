//! `petstore log`: inspects, checks, searches, exports, imports, copies and salvages a log without serving it.

mod copy;
mod export;
mod find;
mod import;
mod progress;
mod report;
mod salvage;
mod stat;
mod tail;
mod verify;

use anyhow::bail;
pub(crate) use find::FindArguments;

use crate::config::LogCommand;

#[tokio::main]
pub(crate) async fn run(command: LogCommand) -> anyhow::Result<()> {
    tokio::select! {
        outcome = carry_out(command) => outcome,
        // Ends in order, so that a copy of a store does not stay in the folder for temporary files.
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

async fn carry_out(command: LogCommand) -> anyhow::Result<()> {
    match command {
        LogCommand::Stat(argument) => stat::run(&argument.store).await,
        LogCommand::Verify { head, source, snapshot } => {
            verify::run(&source.store, head, snapshot.snapshot_dir.as_deref()).await
        }
        LogCommand::Export(argument) => export::run(&argument.store).await,
        LogCommand::Import { file, accept_gaps: false, target } => import::run(&file, &target.store).await,
        LogCommand::Import { file, accept_gaps: true, target } => {
            import::run_with_gaps(&file, &target.store).await
        }
        LogCommand::Copy { from, to } => copy::run(&from, &to).await,
        LogCommand::Salvage { from, to, gaps_to } => salvage::run(&from, &to, gaps_to.as_deref()).await,
        LogCommand::Tail { after, source } => tail::run(&source.store, after).await,
        LogCommand::Find(arguments) => find::run(&arguments).await,
    }
}
