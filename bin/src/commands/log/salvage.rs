//! `petstore log salvage`: copies the intact part of a damaged log into a new one, and reports the unreadable
//! positions.

use std::sync::Arc;

use adapters::event_log::SalvagedLog;
use anyhow::{anyhow, bail};
use application::{
    Digest,
    ports::{Fault, LogError, Position},
    transfer::{self, Contradiction, CopyError, DamagedCopy, MergeError, MergedLog, Rechained, Side, Tally},
};
use chrono::SecondsFormat;
use thiserror::Error;

use super::{
    progress::{self, ProgressDisplay},
    report,
};
use crate::{config::AccessArguments, store_url::StoreUrl, wire};

/// Advice for a hash chain that breaks where no commit is missing.
const BREAK_ADVICE: &str = "--accept-gaps cannot tell which commits are the original ones: take them from another copy with --also and --head, or \
     salvage only the commits before this position, without --accept-gaps";

/// The target was stored, but it lacks commits of the damaged log, or may lack some.
#[derive(Debug, Error)]
#[error("incomplete: {0}")]
pub(crate) struct Incomplete(String);

/// What a salvage has stored in its target.
struct Salvaged {
    /// The last position of the damaged log that was salvaged.
    end: Position,
    /// The positions of the damaged log that the target lacks.
    lost: Vec<(Position, Position)>,
}

/// Salvages the first of the stores, whose gaps the others fill. Fails with [`Incomplete`] after it has stored a part of
/// the log.
pub(super) async fn run(
    sources: &[StoreUrl],
    head: Option<Digest>,
    to: &StoreUrl,
    accept_gaps: bool,
    access: &AccessArguments,
) -> anyhow::Result<()> {
    let (from, also) = sources.split_first().expect("there is at least the damaged store");
    let remains = wire::salvage(from).await?;
    if also.is_empty() {
        let Salvaged { lost, .. } = salvage(&remains, from, to, accept_gaps).await?;
        return check_complete(&remains, from, to, &lost);
    }
    let end_is_known = remains.end_is_known;
    let mut copies = vec![remains];
    for url in also {
        copies.push(wire::salvage_copy(url, access).await?);
    }
    let merged = Arc::new(merge(sources, copies, head).await?);
    let (log, last_known) = (merged.clone(), merged.last());
    let remains = SalvagedLog { log, last_known, end_is_known };
    let Salvaged { end, lost } = salvage(&remains, from, to, accept_gaps).await?;
    for (copy, url) in sources.iter().enumerate() {
        let taken = merged.read_from(copy, end);
        let taken = if taken.is_empty() { "nothing".to_owned() } else { report::ranges(&taken) };
        report::field("taken", format!("{taken}, from {url}"));
    }
    check_complete(&remains, from, to, &lost)
}

/// Fails if the target lacks commits, or if it is unknown whether it does.
fn check_complete(
    remains: &SalvagedLog,
    from: &StoreUrl,
    to: &StoreUrl,
    lost: &[(Position, Position)],
) -> anyhow::Result<()> {
    if !lost.is_empty() {
        bail!(Incomplete(format!("{to} lacks these positions of {from}: {}", report::ranges(lost))));
    }
    if !remains.end_is_known {
        bail!(Incomplete(format!("{to} may lack commits at the end of {from}")));
    }
    Ok(())
}

/// Combines the stores.
async fn merge(
    sources: &[StoreUrl],
    copies: Vec<SalvagedLog>,
    head: Option<Digest>,
) -> anyhow::Result<MergedLog> {
    let copy = |SalvagedLog { log, last_known, .. }| DamagedCopy { log, last_known };
    let copies: Vec<_> = copies.into_iter().map(copy).collect();
    let last = copies.iter().map(|copy| copy.last_known).max().unwrap_or_default();
    let progress = ProgressDisplay::up_to(last);
    let merged = transfer::merge(&copies, head, |position| progress.reached(position)).await;
    drop(progress);
    merged.map_err(|error| match error {
        MergeError::Copy(copy, error) => anyhow!("{}: {error}", sources[copy]),
        MergeError::Contradiction(found) => {
            let Contradiction { position, sides } = *found;
            let [one, other] = sides.map(|Side { copy, commit, time, last: (last, hash) }| {
                let (url, time) = (&sources[copy], time.to_rfc3339_opts(SecondsFormat::Secs, true));
                format!("{url} holds commit {} of {time} (its last intact position is {last}, --head {hash})", commit.0)
            });
            anyhow!(
                "the stores hold different histories: at position {position}, {one}, and {other}; choose one of them with \
                 --head, or leave out a store"
            )
        }
        MergeError::NoSuchHead(_) => {
            anyhow!("{error}: the commits up to it are incomplete, or the hash is wrong; petstore log verify prints the head hash of a store")
        }
    })
}

/// Salvages what remains of a store.
async fn salvage(
    remains: &SalvagedLog,
    from: &StoreUrl,
    to: &StoreUrl,
    accept_gaps: bool,
) -> anyhow::Result<Salvaged> {
    if accept_gaps {
        let rechained = around_gaps(remains).await.map_err(|error| match error.fault {
            Fault::Damaged => anyhow!("{error}; {BREAK_ADVICE}"),
            _ => error.into(),
        })?;
        if !rechained.gaps.is_empty() {
            salvage_around_gaps(&rechained, from, to).await?;
            return Ok(Salvaged { end: remains.last_known, lost: rechained.gaps });
        }
    }
    let mut intact = Tally::default();
    let copied = wire::with_log(to, async |target| {
        match progress::copy_all(&*remains.log, target, &mut intact).await {
            Ok(()) => Ok(None),
            // Reaching the damage is the expected end. An outage is not damage.
            Err(CopyError::Source(reason)) if reason.fault != Fault::Unreachable => Ok(Some(reason)),
            Err(error) => Err(error.into()),
        }
    });
    let reason = copied.await?;
    if intact.position() > Position::START {
        report::field("salvaged", format!("{from} into {to}"));
    }
    report_intact_part(&intact, remains).await;
    if let Some(reason) = reason {
        report::field("reason", reason);
    }
    if intact.position() == Position::START {
        bail!("nothing was salvaged: no commit at the start of {from} can be read; check the path");
    }
    let end = intact.position();
    let lost = if end < remains.last_known { vec![(end.next(), remains.last_known)] } else { vec![] };
    Ok(Salvaged { end, lost })
}

/// Copies every readable commit.
async fn salvage_around_gaps(rechained: &Rechained, from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    wire::with_log(to, async |target| Ok(progress::copy_all(rechained, target, &mut tally).await?)).await?;
    report::field("salvaged", format!("{from} into {to}, with new positions and a new head hash"));
    report::tally(&tally);
    report::field("unreadable", report::ranges(&rechained.gaps));
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
    let (first_bad, last) = (intact.position().next(), remains.last_known);
    match around_gaps(remains).await.map(|rechained| rechained.gaps) {
        Ok(gaps) if gaps.first().is_some_and(|(first, _)| *first == first_bad) => {
            report::field("unreadable", report::ranges(&gaps));
            let left_out = between(&gaps, first_bad, last);
            if !left_out.is_empty() {
                let what_to_do = "intact, but after a gap; --accept-gaps salvages them too, with new positions and a new head hash";
                report::field("left out", format!("{}: {what_to_do}", report::ranges(&left_out)));
            }
        }
        // The first bad commit can be read, but not used. The error of the command says why.
        Ok(_) | Err(_) if first_bad <= last => {
            report::field("left out", report::ranges(&[(first_bad, last)]));
        }
        Ok(_) | Err(_) if last > Position::START => report::field("unreadable", "nothing"),
        Ok(_) | Err(_) => {}
    }
    if !remains.end_is_known {
        let unknown = match remains.last_known {
            Position::START => "how many commits there were".to_owned(),
            last => format!("whether there were commits after position {last}"),
        };
        report::field("unknown", format!("{unknown}, because the high-water mark is lost"));
    }
}

/// Every readable commit.
async fn around_gaps(remains: &SalvagedLog) -> Result<Rechained, LogError> {
    Rechained::open(remains.log.clone(), remains.last_known).await
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
