//! `petstore log tail`: prints the events of the last commits, then new ones as they arrive.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Context as _, bail};
use application::{
    LogAccess,
    log::codec,
    ports::{LogError, Position, ReadBound, StoredRecord, wait_for_records},
};

use super::find;
use crate::{config::SourceArgument, output, wire};

/// The number of existing commits that are printed first.
const EXISTING_COMMITS: u64 = 10;
/// How long to wait for a notification before polling.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is interrupted. An embedded log cannot grow while this command has it open, so the command ends after
/// the last commit.
pub(super) async fn run(source: &SourceArgument, after: Option<u64>, json: bool) -> anyhow::Result<()> {
    let log = wire::open_source(&source.store, &source.access).await?;
    let head = log.head().await?;
    if let Some(after) = after.filter(|after| *after > head.0) {
        bail!("--after {after} is beyond the end of the log, which is at position {head}");
    }
    let mut last = Position(after.unwrap_or(head.0.saturating_sub(EXISTING_COMMITS)));
    loop {
        let records = log.read(last, ReadBound::BATCH).await?;
        for record in &records {
            let lines = if json { [&record.bytes[..], b"\n"].concat() } else { events(record)?.into_bytes() };
            match io::stdout().write_all(&lines) {
                // The reader has closed the pipe.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                printed => printed.with_context(|| format!("cannot write to {}", output::destination()))?,
            }
        }
        last = records.last().map_or(last, |record| record.position);
        match source.store.access() {
            LogAccess::Exclusive if last >= head => return Ok(()),
            LogAccess::Exclusive => {}
            LogAccess::Shared => wait_for_records(&*log, last, POLL_INTERVAL).await,
        }
    }
}

/// The events of a commit, one on each line.
fn events(record: &StoredRecord) -> Result<String, LogError> {
    let commit = codec::decode_stored(record)?;
    Ok(commit.entries.iter().map(|entry| find::as_text(&commit, entry) + "\n").collect())
}
