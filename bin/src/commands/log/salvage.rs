//! `petstore log salvage`: copies the intact part of a damaged log into a new one, and reports the unreadable
//! positions.

use adapters::event_log::SalvagedLog;
use anyhow::bail;
use application::{
    ports::{LogError, Position},
    transfer::{self, CopyError, Tally},
};

use super::{
    progress::{self, ProgressDisplay},
    report,
};
use crate::{store_url::StoreUrl, wire};

pub(super) async fn run(from: &StoreUrl, to: &StoreUrl, accept_gaps: bool) -> anyhow::Result<()> {
    let remains = wire::salvage(from).await?;
    if accept_gaps {
        let found =
            transfer::read_around_gaps::<LogError>(&*remains.log, remains.last_known, async |_| Ok(()));
        if !found.await?.is_empty() {
            return salvage_around_gaps(&remains, from, to).await;
        }
    }
    let mut intact = Tally::default();
    let copied = wire::with_log(to, async |target| {
        match progress::copy_all(&*remains.log, target, &mut intact).await {
            Ok(()) => Ok(None),
            // Reaching the damage is the expected end.
            Err(CopyError::Source(reason)) => Ok(Some(reason)),
            Err(error) => Err(error.into()),
        }
    });
    let reason = copied.await?;
    if intact.position() > Position::START {
        report::field("salvaged", format!("{from} into {to}"));
    }
    report_intact_part(&intact, &remains).await;
    if let Some(reason) = reason {
        report::field("reason", reason);
    }
    if intact.position() == Position::START {
        bail!("nothing was salvaged: no commit at the start of {from} can be read; check the path");
    }
    Ok(())
}

/// Adds every readable commit to an empty log.
async fn salvage_around_gaps(remains: &SalvagedLog, from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    let salvaged = wire::with_log(to, async |target| {
        let progress = ProgressDisplay::up_to(remains.last_known);
        let reached = |position| progress.reached(position);
        Ok(transfer::salvage_around_gaps(&*remains.log, remains.last_known, target, reached).await?)
    });
    let (gaps, tally) = salvaged.await?;
    report::field("salvaged", format!("{from} into {to}, with new positions and a new head hash"));
    report::tally(&tally);
    report::field("unreadable", report::ranges(&gaps));
    if tally.position() == Position::START {
        bail!("nothing was salvaged: no commit of {from} can be read");
    }
    Ok(())
}

/// Reports what a salvage would copy. `first_bad` is the first bad position that the engine has found, if any.
pub(super) async fn survey(remains: &SalvagedLog, first_bad: Option<Position>) {
    let mut intact = Tally::default();
    // The error is known already.
    let _ = progress::check_all(&*remains.log, &mut intact, |_| ()).await;
    let beyond = intact.position().next();
    if let Some(first_bad) = first_bad.or((beyond <= remains.last_known).then_some(beyond)) {
        report::field("first bad", first_bad);
    }
    let salvageable =
        if intact.position() == Position::START { "nothing" } else { "with petstore log salvage:" };
    report::field("salvageable", salvageable);
    report_intact_part(&intact, remains).await;
}

async fn report_intact_part(intact: &Tally, remains: &SalvagedLog) {
    if intact.position() > Position::START {
        report::tally(intact);
    }
    let missing = missing(intact, remains).await;
    if missing.is_empty() && remains.last_known > Position::START {
        report::field("unreadable", "nothing");
    }
    if !missing.is_empty() {
        report::field("unreadable", report::ranges(&missing));
        let left_out = between(&missing, intact.position().next(), remains.last_known);
        if !left_out.is_empty() {
            let what_to_do = "intact, but after a gap; --accept-gaps salvages them too, with new positions and a new head hash";
            report::field("left out", format!("{}: {what_to_do}", report::ranges(&left_out)));
        }
    }
    if !remains.end_is_known {
        let unknown = match remains.last_known {
            Position::START => "how many commits there were".to_owned(),
            last => format!("whether there were commits after position {last}"),
        };
        report::field("unknown", format!("{unknown}, because the high-water mark is lost"));
    }
}

/// The positions that cannot be read or are not valid.
async fn missing(intact: &Tally, remains: &SalvagedLog) -> Vec<(Position, Position)> {
    let first_bad = intact.position().next();
    let read = transfer::read_around_gaps::<LogError>(&*remains.log, remains.last_known, async |_| Ok(()));
    // After a record of a newer format, the rest counts as unreadable.
    let mut missing = read.await.unwrap_or_else(|_| vec![(first_bad, remains.last_known)]);
    let found = !missing.iter().any(|(first, last)| (*first..=*last).contains(&first_bad));
    if first_bad <= remains.last_known && found {
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
            found.push((next, start.before()));
        }
        next = next.max(end.next());
    }
    found
}
