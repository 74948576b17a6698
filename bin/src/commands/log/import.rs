//! `petstore log import`: appends an exported history to a log.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Seek as _},
    path::Path,
};

use anyhow::{Context as _, anyhow, bail};
use application::{
    log::commit::Commit,
    ports::Position,
    transfer::{self, Cut, End, ExportError, Tally},
};

use super::{progress::ProgressDisplay, report, until};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(file: &Path, url: &StoreUrl, until: Option<End>) -> anyhow::Result<()> {
    // Before the file is checked, which can take long.
    wire::engine_of(url)?;
    if file == Path::new("-") {
        return import(io::stdin().lock(), "standard input", url, until, ProgressDisplay::without_end())
            .await;
    }
    let name = file.display().to_string();
    let cannot_open = || format!("cannot open {name}");
    let mut opened = File::open(file).with_context(cannot_open)?;
    let mut progress = ProgressDisplay::without_end();
    if opened.metadata().with_context(cannot_open)?.is_file() {
        // Check the whole file first: a partial import would look complete.
        let mut cut = Cut::at(until);
        transfer::check_export(BufReader::new(&opened), &mut cut)
            .await
            .map_err(|error| anyhow!("cannot import {name}: {error}"))?;
        cut.check().map_err(|error| anyhow!("cannot import {name}: {error}"))?;
        progress = ProgressDisplay::up_to(cut.last);
        opened.rewind()?;
    }
    import(BufReader::new(opened), &name, url, until, progress).await
}

/// Imports records from the file or stream `name`.
async fn import(
    mut lines: impl BufRead,
    name: &str,
    url: &StoreUrl,
    until: Option<End>,
    progress: ProgressDisplay,
) -> anyhow::Result<()> {
    // Before the log is opened, which creates it.
    let begun =
        lines.fill_buf().map_err(|error| anyhow!("cannot read {name}: {error}; nothing was imported"))?;
    if begun.is_empty() {
        bail!("cannot import {name}: it is empty; nothing was imported");
    }
    wire::with_log(url, async |log| {
        let before = log.head().await?;
        let (mut cut, mut tally) = (Cut::at(until), Tally::default());
        let reached = |commit: &Commit| progress.reached(commit.position);
        let imported = transfer::import(lines, log, &mut cut, &mut tally, reached).await;
        drop(progress);
        let outcome = match tally.position() {
            Position::START => "nothing was imported".to_owned(),
            position => format!(
                "{url} now holds the history up to position {position}, and importing a complete export resumes from there"
            ),
        };
        imported.map_err(|error| {
            match error {
                ExportError::Target(error) => error.into(),
                ExportError::File(error) => anyhow!("cannot read {name}: {error}; {outcome}"),
                error @ (ExportError::Log(_) | ExportError::NotAnExport { .. }) => {
                    anyhow!("cannot import {name}: {error}; {outcome}")
                }
            }
        })?;
        cut.check().map_err(|error| anyhow!("cannot import {name}: {error}; {outcome}"))?;
        until::check_target(until, url, before, tally.position())?;
        report::stored("imported", format!("{name} into {url}"), url, before, &tally);
        report::until(&cut);
        Ok(())
    })
    .await
}
