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
    transfer::{self, CopyError, Cut, End, Tally},
};

use super::{progress, report, until};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(file: &Path, url: &StoreUrl, until: Option<End>) -> anyhow::Result<()> {
    until::warn_if_in_the_future(until);
    // Before the file is checked, which can take long.
    wire::engine_of(url)?;
    let mut bar = progress::without_end();
    let mut name = "standard input".to_owned();
    let mut lines: Box<dyn BufRead> = Box::new(io::stdin().lock());
    if file != Path::new("-") {
        name = file.display().to_string();
        let cannot_open = || format!("cannot open {name}");
        let mut opened = File::open(file).with_context(cannot_open)?;
        if opened.metadata().with_context(cannot_open)?.is_file() {
            // Check the whole file first: a partial import would look complete.
            let mut cut = Cut { end: until, ..Cut::default() };
            let checked = transfer::check_export(BufReader::new(&opened), &mut cut).await;
            checked.and_then(|_| cut.check()).map_err(|error| anyhow!("cannot import {name}: {error}"))?;
            bar = progress::up_to(cut.last);
            opened.rewind()?;
        }
        lines = Box::new(BufReader::new(opened));
    }
    // Before the log is opened, which creates it.
    let begun =
        lines.fill_buf().map_err(|error| anyhow!("cannot read {name}: {error}; nothing was imported"))?;
    if begun.is_empty() {
        bail!("cannot import {name}: it is empty; nothing was imported");
    }
    wire::with_log(url, async |log| {
        let before = log.head().await?;
        let (mut cut, mut tally) = (Cut { end: until, ..Cut::default() }, Tally::default());
        let reached = |commit: &Commit| bar.set_position(commit.position.0);
        let imported = transfer::import(lines, log, &mut cut, &mut tally, reached).await;
        drop(bar);
        let outcome = match tally.position() {
            Position::START => "nothing was imported".to_owned(),
            position => format!(
                "{url} now holds the history up to position {position}, and importing a complete export resumes from there"
            ),
        };
        let checked = match imported {
            Ok(()) => cut.check(),
            Err(CopyError::Source(error)) => Err(error),
            Err(error) => return Err(error.into()),
        };
        checked.map_err(|error| anyhow!("cannot import {name}: {error}; {outcome}"))?;
        report::stored("imported", format!("{name} into {url}"), url, before, &tally, &cut)
    })
    .await
}
