//! `petstore log salvage`: copies the intact part of a damaged log into a new one, and reports what could not be
//! read.

use std::{fs::OpenOptions, io::BufWriter, os::unix::fs::OpenOptionsExt as _, path::Path};

use anyhow::{Context as _, bail};
use application::{
    ports::{LogError, Position},
    transfer::{self, Broken, CopyError, Summary},
};

use chrono::Utc;

use super::{
    progress::{self, Progress},
    report,
};
use crate::{engines::Remains, store_url::StoreUrl, wire};

pub(super) async fn run(from: &StoreUrl, to: &StoreUrl, gaps_to: Option<&Path>) -> anyhow::Result<()> {
    if from.is_same_as(to) {
        bail!("--from and --to are the same log: choose a new one as the target");
    }
    let remains = wire::find_remains(from).await?;
    if let Some(file) = gaps_to {
        let found = transfer::read_around_gaps::<LogError>(&*remains.log, remains.reach, async |_| Ok(()));
        if !found.await?.gaps.is_empty() {
            return salvage_to_file(&remains, from, file).await;
        }
    }
    let target = wire::open_log(to).await?;
    let progress = Progress::through(&*remains.log).await?;
    let copied = transfer::copy(&*remains.log, &*target, |position| progress.reached(position)).await;
    drop(progress);
    let (sound, reason) = match copied {
        Ok(sound) => (sound, None),
        // Reaching the damage is the expected end, not a failure.
        Err(Broken { sound, error: CopyError::Source(reason) }) => (*sound, Some(reason)),
        Err(Broken { error, .. }) => return Err(error.into()),
    };
    report::fact("salvaged", format!("{to}, from {from}"));
    report_intact_part(&sound, &remains);
    if let Some(reason) = reason {
        report::fact("reason", reason);
    }
    if sound.last == Position::START {
        bail!("nothing was salvaged: no commit at the start of {from} can be read");
    }
    Ok(())
}

/// Writes every readable record to a new file.
async fn salvage_to_file(remains: &Remains, from: &StoreUrl, path: &Path) -> anyhow::Result<()> {
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = options.with_context(|| format!("cannot create {}: choose a new file", path.display()))?;
    let progress = Progress::up_to(remains.reach);
    let reached = |position| progress.reached(position);
    let mut out = BufWriter::new(&file);
    let found =
        transfer::export_around_gaps(&*remains.log, remains.reach, &mut out, Utc::now(), reached).await;
    let incomplete = || format!("{} is incomplete: delete it, and salvage again", path.display());
    let found = found.with_context(incomplete)?;
    file.sync_all().with_context(incomplete)?;
    drop(progress);
    report::fact("salvaged", format!("{}, from {from}: incomplete", path.display()));
    report::fact("commits", found.commits);
    report::fact("events", found.events);
    report::fact("unreadable", report::ranges(&found.gaps));
    if found.commits == 0 {
        bail!("nothing was salvaged: no commit of {from} can be read");
    }
    report::fact("next", "petstore log import --accept-gaps adds these pets to a new log");
    Ok(())
}

/// Reports what a salvage would save and what it would not. `first_bad` is the first bad position that the engine has
/// met, if any.
pub(super) async fn survey(remains: &Remains, first_bad: Option<Position>) {
    let sound = match progress::check_all(&*remains.log).await {
        Ok(sound) => sound,
        Err(Broken { sound, .. }) => *sound,
    };
    let beyond = sound.last.next();
    if let Some(first_bad) = first_bad.or((beyond <= remains.reach).then_some(beyond)) {
        report::fact("first bad", first_bad);
    }
    report::fact("salvageable", "with petstore log salvage:");
    report_intact_part(&sound, remains);
}

fn report_intact_part(sound: &Summary, remains: &Remains) {
    report::summary(sound);
    let missing = missing(sound, remains);
    if missing.is_empty() {
        report::fact("unreadable", "nothing");
    } else {
        report::fact("unreadable", report::ranges(&missing));
        let left_out = between(&missing, sound.last.next(), remains.reach);
        if !left_out.is_empty() {
            let what_to_do = "intact, but after a gap; --gaps-to FILE salvages them, too";
            report::fact("left out", format!("{}: {what_to_do}", report::ranges(&left_out)));
        }
        if remains.missing.is_none() {
            let first = sound.last.next();
            let what_to_do = "--gaps-to FILE salvages those that can";
            report::fact("unknown", format!("whether commits after {first} can be read; {what_to_do}"));
        }
    }
    if !remains.end_is_known {
        let last = remains.reach;
        report::fact(
            "unknown",
            format!("whether there were commits after {last}, because the high-water mark is lost"),
        );
    }
}

/// The positions that cannot be read, or whose content is wrong.
fn missing(sound: &Summary, remains: &Remains) -> Vec<(Position, Position)> {
    let first_bad = sound.last.next();
    let Some(mut missing) = remains.missing.clone() else {
        // The engine cannot read past the damage.
        return if first_bad <= remains.reach { vec![(first_bad, remains.reach)] } else { vec![] };
    };
    let found = !missing.iter().any(|(first, last)| (*first..=*last).contains(&first_bad));
    if first_bad <= remains.reach && found {
        missing.insert(0, (first_bad, first_bad));
    }
    missing
}

/// The positions from `first` to `last` that are in none of the ranges.
fn between(ranges: &[(Position, Position)], first: Position, last: Position) -> Vec<(Position, Position)> {
    let mut found = Vec::new();
    let mut next = first;
    for (start, end) in ranges.iter().copied().chain([(last.next(), last.next())]) {
        if next < start {
            found.push((next, Position(start.0 - 1)));
        }
        next = next.max(end.next());
    }
    found
}
