//! `petstore log salvage`: copies the intact part of a damaged log into a new one, and reports what could not be
//! read.

use anyhow::bail;
use application::{
    ports::Position,
    transfer::{self, Broken, CopyError, Summary},
};

use super::{
    progress::{self, Progress},
    report,
};
use crate::{
    store_url::StoreUrl,
    wire::{self, Remains},
};

pub(super) async fn run(from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    if from.is_same_as(to) {
        bail!("--from and --to are the same log: choose a new one as the target");
    }
    let remains = wire::find_remains(from).await?;
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
            report::fact("left out", format!("{}: intact, but after a gap", report::ranges(&left_out)));
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
