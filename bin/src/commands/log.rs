//! `petstore log`: inspects, verifies, searches, exports, imports, copies, salvages and accepts a log without serving it.

mod accept;
mod copy;
mod export;
mod find;
mod import;
mod progress;
mod report;
mod salvage;
mod stat;
mod tail;
mod until;
mod verify;

use std::{iter, path::Path, process, time::Duration};

use anyhow::{anyhow, bail};
use application::{
    ports::{Fault, LogError},
    transfer::CopyError,
};
pub(crate) use salvage::Incomplete;

use crate::{
    config::LogCommand, output, stop_signals::StopSignals, store_url::StoreUrl, wire::DAMAGE_ADVICE,
};

/// How long an interrupted command may take to clean up. A command that blocks on its input or output never does.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(1);

// Two threads, also on one processor: while a server floods one of them, the other one runs the timeouts.
#[tokio::main(worker_threads = 2)]
pub(crate) async fn run(command: LogCommand) -> anyhow::Result<()> {
    if let LogCommand::Copy { from, to, .. } = &command {
        check_stores(from, &[], to)?;
    }
    if let LogCommand::Salvage { from, also, to, .. } = &command {
        check_stores(from, also, to)?;
    }
    if let LogCommand::Copy { from, to, follow: true, report_every, access, .. } = command {
        // It handles signals itself.
        return copy::follow(&from, &to, &access, report_every).await;
    }
    let fills_target =
        matches!(command, LogCommand::Import { .. } | LogCommand::Copy { .. } | LogCommand::Salvage { .. });
    let interrupted =
        if fills_target { "interrupted; start the command again to resume" } else { "interrupted" };
    let (mut ends, mut must_end) = (StopSignals::of_command()?, StopSignals::of_command()?);
    tokio::spawn(async move {
        must_end.received().await;
        tokio::time::sleep(INTERRUPT_TIMEOUT).await;
        output::print_error(format_args!("petstore: {interrupted}"));
        process::exit(1);
    });
    tokio::select! {
        outcome = carry_out(command) => {
            outcome.map_err(advise)?;
            if fills_target {
                output::check().map_err(|error| anyhow!("{error}; everything was stored"))?;
            }
            Ok(())
        }
        // Returns normally, so that a temporary copy of a store is deleted.
        () = ends.received() => bail!(interrupted),
    }
}

/// Rejects a store that is named twice, and a target in the directory of a source: a copy is lost together with the
/// original.
fn check_stores(from: &StoreUrl, also: &[StoreUrl], to: &StoreUrl) -> anyhow::Result<()> {
    for (index, source) in iter::once(from).chain(also).enumerate() {
        if source.is_same_as(to) {
            let flag = if index == 0 { "--from" } else { "--also" };
            bail!("{flag} and --to are the same log, {to}: choose a different target");
        }
        if to.path().is_some_and(|path| source.contains(Path::new(path))) {
            bail!("--to {to} is inside the store {source}: choose a path outside it");
        }
        if iter::once(from).chain(also).take(index).any(|other| other.is_same_as(source)) {
            bail!("{source} is named twice: name each store once");
        }
    }
    Ok(())
}

/// Adds advice to an error: what to do about a damaged log, or about a target that lost its files or rejects a record.
fn advise(error: anyhow::Error) -> anyhow::Error {
    let advice = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(CopyError::Target(LogError { fault: Fault::TooLarge, .. })), _) => {
            "choose another engine, or raise the limit of its servers"
        }
        (Some(CopyError::Target(LogError { fault: Fault::FilesMissing, .. })), _) => {
            "put the files back or choose an empty target, and start the command again"
        }
        (Some(CopyError::Source(LogError { fault: Fault::Damaged, .. })), _)
        | (_, Some(LogError { fault: Fault::Damaged, .. })) => DAMAGE_ADVICE,
        _ => return error,
    };
    anyhow!("{error}; {advice}")
}

async fn carry_out(command: LogCommand) -> anyhow::Result<()> {
    match command {
        LogCommand::Stat { json, source } => stat::run(&source, json).await,
        LogCommand::Verify { head, json, source } => verify::run(&source, head, json).await,
        LogCommand::Export { source, until } => export::run(&source, until).await,
        LogCommand::Import { file, store, until } => import::run(&file, &store, until).await,
        LogCommand::Copy { from, to, until, access, .. } => copy::run(&from, &to, until, &access).await,
        LogCommand::Salvage { from, also, head, to, accept_gaps, access } => {
            let sources = [&[from][..], &also].concat();
            salvage::run(&sources, head, &to, accept_gaps, &access).await
        }
        LogCommand::Tail { after, json, source } => tail::run(&source, after, json).await,
        LogCommand::Accept { store, state, yes } => accept::run(&store, &state, yes).await,
        LogCommand::Find(arguments) => find::run(&arguments).await,
    }
}
