//! `petstore log salvage`: copies what is sound of a damaged log into a new one, and tells what could not be
//! read.

use anyhow::bail;
use application::{
    ports::Position,
    transfer::{self, Broken, CopyError, Summary},
};

use super::{
    tell,
    walk::{self, Progress},
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
    let progress = Progress::start(&*remains.log).await?;
    let copied = transfer::copy(&*remains.log, &*target, |position| progress.at(position)).await;
    drop(progress);
    let (sound, reason) = match copied {
        Ok(sound) => (sound, None),
        // The end of what is sound is the end of the work, not a failure of it.
        Err(Broken { sound, error: CopyError::Source(reason) }) => (sound, Some(reason)),
        Err(Broken { error, .. }) => return Err(error.into()),
    };
    tell::line("salvaged", format!("{to}, from {from}"));
    tell_what_is_sound(&sound, &remains);
    if let Some(reason) = reason {
        tell::line("reason", reason);
    }
    Ok(())
}

/// Tells what a salvage would save and what not. `seen` is the first bad position that the engine has met, if
/// any.
pub(super) async fn survey(remains: &Remains, seen: Option<Position>) {
    let sound = match walk::to_the_end(&*remains.log).await {
        Ok(sound) | Err(Broken { sound, .. }) => sound,
    };
    let beyond = sound.last.next();
    if let Some(first_bad) = seen.or((beyond <= remains.reach).then_some(beyond)) {
        tell::line("first bad", first_bad);
    }
    tell::line("salvageable", "with petstore log salvage:");
    tell_what_is_sound(&sound, remains);
}

fn tell_what_is_sound(sound: &Summary, remains: &Remains) {
    tell::summary(sound);
    let missing = missing(sound, remains);
    if missing.is_empty() {
        tell::line("unreadable", "nothing");
    } else {
        tell::line("unreadable", tell::ranges(&missing));
        let left_out = between(&missing, sound.last.next(), remains.reach);
        if !left_out.is_empty() {
            tell::line("left out", format!("{}: intact, but after a gap", tell::ranges(&left_out)));
        }
    }
    if !remains.end_is_known {
        let last = remains.reach;
        tell::line(
            "unknown",
            format!("whether there were commits after {last}, because the high-water mark is lost"),
        );
    }
}

/// What cannot be read, or does not say what it should.
fn missing(sound: &Summary, remains: &Remains) -> Vec<(Position, Position)> {
    let first_bad = sound.last.next();
    let Some(mut missing) = remains.missing.clone() else {
        // Nobody can look beyond the damage.
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
