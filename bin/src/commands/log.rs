//! `petstore log`: looks into a log without serving it.

use std::io::{self, BufWriter, Write as _};

use application::{
    ports::{EventLog, Fault, LogError, StoredRecord},
    transfer::{self, Broken, Summary},
};
use chrono::{SecondsFormat, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use thiserror::Error;

use crate::{config::LogCommand, store_url::StoreUrl, wire};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(command: LogCommand) -> anyhow::Result<()> {
    match command {
        LogCommand::Stat(argument) => stat(&argument.store).await,
        LogCommand::Verify(argument) => verify(&argument.store).await,
        LogCommand::Export(argument) => export(&argument.store).await,
    }
}

async fn stat(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let summary = walk(&*log, |_| Ok(())).await?;
    let durability = log.durability();
    println!("store       {url}");
    print_summary(&summary);
    println!("durability  {}", durability.promise);
    for (setting, value) in &durability.facts {
        println!("            {setting} = {value}");
    }
    Ok(())
}

async fn verify(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let summary = walk(&*log, |_| Ok(())).await?;
    println!("sound       {url}");
    print_summary(&summary);
    Ok(())
}

/// Each line is the stored bytes of one commit, which are JSON themselves, so that importing the lines gives
/// back the very same log.
async fn export(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let mut out = BufWriter::new(io::stdout().lock());
    let summary = walk(&*log, |record| {
        out.write_all(&record.bytes)?;
        out.write_all(b"\n")
    })
    .await?;
    let manifest = json!({ "manifest": {
        "first": u64::from(summary.last.0 > 0),
        "last": summary.last.0,
        "commits": summary.last.0,
        "events": summary.events,
        "bytes": summary.bytes,
        "sha256": summary.digest.to_string(),
        "exported": Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
    }});
    writeln!(out, "{manifest}")?;
    out.flush()?;
    Ok(())
}

/// What can end a walk: the log, or the place where its records go.
#[derive(Debug, Error)]
enum WalkError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("standard output cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Reads the whole log, with a progress bar on a terminal.
async fn walk(
    log: &dyn EventLog,
    mut visit: impl FnMut(&StoredRecord) -> io::Result<()>,
) -> anyhow::Result<Summary> {
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} commits, {eta} to go").expect("a fixed template");
    let progress = ProgressBar::new(log.head().await?.0).with_style(style);
    let walked = transfer::walk(log, async |record, _| {
        progress.set_position(record.position.0);
        visit(record).map_err(WalkError::from)
    })
    .await;
    progress.finish_and_clear();
    walked.map_err(explain)
}

/// Says where the log stops being sound and what can be done.
fn explain(broken: Broken<WalkError>) -> anyhow::Error {
    let Broken { sound, error } = broken;
    match &error {
        WalkError::Log(log) if log.fault == Fault::Damaged => anyhow::anyhow!(
            "{log}; positions 1 to {} are sound (digest {}): restore a backup",
            sound.last,
            sound.digest
        ),
        WalkError::Log(_) | WalkError::Output(_) => error.into(),
    }
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
