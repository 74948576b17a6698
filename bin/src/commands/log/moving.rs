//! Histories on the move: to a file, from a file, from engine to engine, to the screen as they grow.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Seek as _, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use application::{
    Sharing,
    ports::{Position, ReadBound, StoredRecord},
    transfer::{self, Broken, ExportError},
};
use chrono::Utc;

use super::{tell, walk::Progress};
use crate::{store_url::StoreUrl, wire};

/// How many commits are shown before the new ones.
const TAIL_COMMITS: u64 = 10;
/// How long to wait for news before looking for them.
const TAIL_PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn export(url: &StoreUrl) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let progress = Progress::start(&*log).await?;
    let out = BufWriter::new(io::stdout().lock());
    match transfer::export(&*log, out, Utc::now(), |position| progress.at(position)).await {
        Err(Broken { error: ExportError::File(error), .. }) if error.kind() == io::ErrorKind::BrokenPipe => {
            bail!("the reader closed the pipe: the export is incomplete")
        }
        exported => exported.map(|_| ()).map_err(Into::into),
    }
}

pub(super) async fn import(file: &Path, url: &StoreUrl) -> anyhow::Result<()> {
    if file == Path::new("-") {
        return take_in(io::stdin().lock(), url, Progress::open_end()).await;
    }
    let cannot_open = || format!("cannot open {}", file.display());
    let mut opened = File::open(file).with_context(cannot_open)?;
    let mut progress = Progress::open_end();
    if opened.metadata().with_context(cannot_open)?.is_file() {
        // A target that looks whole and is not would be worse than none.
        let whole = transfer::check_export(BufReader::new(&opened))
            .await
            .map_err(|broken| anyhow!("{} is not a complete export: {broken}", file.display()))?;
        progress = Progress::up_to(whole.last);
        opened.rewind()?;
    }
    take_in(BufReader::new(opened), url, progress).await
}

async fn take_in(lines: impl BufRead, url: &StoreUrl, progress: Progress) -> anyhow::Result<()> {
    let log = wire::open_log(url).await?;
    let imported = transfer::import(lines, &*log, |position| progress.at(position)).await;
    drop(progress);
    let imported = imported.map_err(|broken| match &broken.error {
        ExportError::Target(_) => anyhow!("{broken}"),
        ExportError::Log(_) | ExportError::File(_) | ExportError::NotAnExport { .. } => anyhow!(
            "{broken}; {url} now holds the history up to position {}, and importing a complete export resumes from there",
            broken.sound.last
        ),
    })?;
    tell::line("imported", url);
    tell::summary(&imported);
    Ok(())
}

pub(super) async fn copy(from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    if from.is_same_as(to) {
        bail!("--from and --to are the same log: choose a different target");
    }
    let source = wire::open_existing_log(from).await?;
    let target = wire::open_log(to).await?;
    let before = target.head().await?;
    let progress = Progress::start(&*source).await?;
    let copied = transfer::copy(&*source, &*target, |position| progress.at(position)).await?;
    drop(progress);
    if before == copied.last {
        tell::line("copied", format!("nothing: {to} already holds all of {from}"));
    } else {
        tell::line("copied", format!("{from} to {to}"));
    }
    tell::summary(&copied);
    Ok(())
}

/// Prints the last commits, then those that come, until somebody stops it. Nobody else can write to an embedded log while
/// this looks at it, so there it ends.
pub(super) async fn tail(url: &StoreUrl, after: Option<u64>) -> anyhow::Result<()> {
    let log = wire::open_existing_log(url).await?;
    let head = log.head().await?;
    let mut last = Position(after.unwrap_or(head.0.saturating_sub(TAIL_COMMITS)));
    loop {
        let records = log.read(last, ReadBound::BATCH).await?;
        match print(&records) {
            // Whoever has seen enough stops reading.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            printed => printed?,
        }
        last = records.last().map_or(last, |record| record.position);
        match url.sharing() {
            Sharing::Alone if last >= head => return Ok(()),
            Sharing::Alone => {}
            Sharing::Shared => log.wait_beyond(last, TAIL_PATIENCE).await?,
        }
    }
}

fn print(records: &[StoredRecord]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for record in records {
        out.write_all(&record.bytes)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
