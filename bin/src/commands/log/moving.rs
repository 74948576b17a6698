//! Histories on the move: to a file, from a file, from engine to engine, to the screen as they grow.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use application::{
    Sharing,
    ports::{Position, ReadBound},
    transfer,
};
use chrono::Utc;

use super::{tell, walk::Progress};
use crate::{store_url::StoreUrl, wire};

/// How long to wait for news before looking for them.
const TAIL_PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn export(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let progress = Progress::start(&*log).await?;
    let out = BufWriter::new(io::stdout().lock());
    transfer::export(&*log, out, Utc::now(), |position| progress.at(position)).await?;
    Ok(())
}

pub(super) async fn import(file: &Path, url: &StoreUrl) -> anyhow::Result<()> {
    let lines: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(file).with_context(|| format!("{} cannot be opened", file.display()))?;
        Box::new(BufReader::new(opened))
    };
    let log = wire::open_log(url).await?;
    let imported = transfer::import(lines, &*log, |_| {}).await?;
    tell::line("imported", url);
    tell::summary(&imported);
    Ok(())
}

pub(super) async fn copy(from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    let source = wire::open_existing_log(from).await?;
    let target = wire::open_log(to).await?;
    let progress = Progress::start(&*source).await?;
    let copied = transfer::copy(&*source, &*target, |position| progress.at(position)).await?;
    drop(progress);
    tell::line("copied", format!("{from} to {to}"));
    tell::summary(&copied);
    Ok(())
}

/// Prints commits as they come, until somebody stops it.
pub(super) async fn tail(url: &StoreUrl, after: Option<u64>) -> anyhow::Result<()> {
    if url.sharing() == Sharing::Alone {
        anyhow::bail!("nobody else can write to {url} while this looks at it: use petstore log export");
    }
    let log = wire::open_existing_log(url).await?;
    let mut last = match after {
        Some(after) => Position(after),
        None => log.head().await?,
    };
    let mut out = io::stdout().lock();
    loop {
        for record in log.read(last, ReadBound::BATCH).await? {
            out.write_all(&record.bytes)?;
            out.write_all(b"\n")?;
            last = record.position;
        }
        out.flush()?;
        log.wait_beyond(last, TAIL_PATIENCE).await?;
    }
}
