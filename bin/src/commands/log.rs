//! `petstore log`: looks into a log and moves whole histories, without serving them.

mod moving;

use application::{
    ports::{EventLog, Fault, LogError},
    transfer::{self, Broken, Summary},
};
use chrono::SecondsFormat;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{config::LogCommand, store_url::StoreUrl, wire};

#[tokio::main]
pub(crate) async fn run(command: LogCommand) -> anyhow::Result<()> {
    match command {
        LogCommand::Stat(argument) => stat(&argument.store).await,
        LogCommand::Verify(argument) => verify(&argument.store).await,
        LogCommand::Export(argument) => moving::export(&argument.store).await,
        LogCommand::Import { file, target } => moving::import(&file, &target.store).await,
        LogCommand::Copy { from, to } => moving::copy(&from, &to).await,
        LogCommand::Tail { after, source } => moving::tail(&source.store, after).await,
    }
}

async fn stat(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let summary = walk(&*log).await?;
    let durability = log.durability();
    println!("store       {url}");
    println!("engine      {}", durability.engine);
    print_summary(&summary);
    println!("durability  {}", durability.promise);
    for (setting, value) in &durability.facts {
        println!("            {setting} = {value}");
    }
    Ok(())
}

async fn verify(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let summary = walk(&*log).await?;
    println!("sound       {url}");
    print_summary(&summary);
    Ok(())
}

/// Reads and checks the whole log.
async fn walk(log: &dyn EventLog) -> anyhow::Result<Summary> {
    let progress = progress_to(log).await?;
    let walked = transfer::walk::<LogError>(log, async |record, _| {
        progress.set_position(record.position.0);
        Ok(())
    })
    .await;
    progress.finish_and_clear();
    walked.map_err(|broken| explain(&broken))
}

/// A bar that fills up to the head of the log, on a terminal.
async fn progress_to(log: &dyn EventLog) -> Result<ProgressBar, LogError> {
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} commits, {eta} to go").expect("a fixed template");
    Ok(ProgressBar::new(log.head().await?.0).with_style(style))
}

/// Says where the log stops being sound and what can be done.
fn explain(broken: &Broken<LogError>) -> anyhow::Error {
    let Broken { sound, error } = broken;
    if error.fault != Fault::Damaged {
        return error.clone().into();
    }
    anyhow::anyhow!(
        "{error}; positions 1 to {} are sound (digest {}): restore a backup",
        sound.last,
        sound.digest
    )
}

fn print_summary(summary: &Summary) {
    println!("position    {}", summary.last);
    println!("events      {}", summary.events);
    println!("bytes       {}", summary.bytes);
    if let Some((first, last)) = summary.span {
        println!("first       {}", first.to_rfc3339_opts(SecondsFormat::Secs, true));
        println!("last        {}", last.to_rfc3339_opts(SecondsFormat::Secs, true));
    }
    println!("digest      {}", summary.digest);
}
