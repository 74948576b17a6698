//! `petstore log salvage`: copies the intact part of a damaged log into a new one, and reports the unreadable
//! positions.

use std::sync::Arc;

use anyhow::{anyhow, bail};
use application::{
    Digest,
    ports::{EventLog, Fault, Position},
    transfer::{self, CopyError, Found, MergeError, MergedLog, Rechained, SalvagedLog, Tally},
};
use thiserror::Error;

use super::{progress, report};
use crate::{config::AccessArguments, store_url::StoreUrl, wire};

/// Advice for a hash chain that breaks where no commit is missing.
const BREAK_ADVICE: &str = "--accept-gaps cannot tell which commits are the original ones: take them from another copy with --also and --head, or \
     salvage only the commits before this position, without --accept-gaps";

/// The target was stored, but it lacks commits of the damaged log, or may lack some.
#[derive(Debug, Error)]
#[error("incomplete: {0}")]
pub(crate) struct Incomplete(String);

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
    let mut remains = wire::salvage(from).await?;
    let mut merged = None;
    if !also.is_empty() {
        let mut copies = vec![remains.clone()];
        for url in also {
            copies.push(wire::salvage_copy(url, access).await?);
        }
        let log = Arc::new(merge(sources, &copies, head).await?);
        merged = Some(log.clone());
        remains = SalvagedLog { end_is_known: remains.end_is_known, ..SalvagedLog::new(log).await? };
    }
    let (end, lost) = salvage(&remains, from, to, accept_gaps).await?;
    for (copy, url) in sources.iter().enumerate() {
        let Some(merged) = &merged else { break };
        let taken = merged.read_from(copy, end);
        let taken = if taken.is_empty() { "nothing".to_owned() } else { report::ranges(&taken) };
        report::field("taken", format!("{taken}, from {url}"));
    }
    if !lost.is_empty() {
        bail!(Incomplete(format!("{to} lacks these positions of {from}: {}", report::ranges(&lost))));
    }
    if !remains.end_is_known {
        bail!(Incomplete(format!("{to} may lack commits at the end of {from}")));
    }
    Ok(())
}

/// Combines the stores.
async fn merge(
    sources: &[StoreUrl],
    copies: &[SalvagedLog],
    head: Option<Digest>,
) -> anyhow::Result<MergedLog> {
    let last = copies.iter().map(|copy| copy.last_known).max().unwrap_or_default();
    let bar = progress::up_to(last);
    let merged = transfer::merge(copies, head, |position| bar.set_position(position.0)).await;
    drop(bar);
    merged.map_err(|error| match error {
        MergeError::Copy(copy, error) => anyhow!("{}: {error}", sources[copy]),
        MergeError::Contradiction(found) => {
            let position = found[0].commit.position;
            let [one, other] = found.map(|Found { copy, commit, last: (last, hash), .. }| {
                let (url, time) = (&sources[copy], report::seconds(commit.time));
                format!("{url} holds commit {} of {time} (its last intact position is {last}, --head {hash})", commit.id.0)
            });
            anyhow!(
                "the stores hold different histories: at position {position}, {one}, and {other}; choose one of them with \
                 --head, or leave out a store"
            )
        }
        MergeError::NoSuchHead(head) => anyhow!(
            "no history in these stores has the head hash {head}: the commits up to it are incomplete, or the hash is wrong; \
             petstore log verify prints the head hash of a store"
        ),
    })
}

/// Salvages what remains of a store. Returns the last position of it that was salvaged, and the positions that the target
/// lacks.
async fn salvage(
    remains: &SalvagedLog,
    from: &StoreUrl,
    to: &StoreUrl,
    accept_gaps: bool,
) -> anyhow::Result<(Position, Vec<(Position, Position)>)> {
    let mut tally = Tally::default();
    if accept_gaps {
        let rechained = Rechained::open(remains).await.map_err(|error| match error.fault {
            Fault::Damaged => anyhow!("{error}; {BREAK_ADVICE}"),
            _ => error.into(),
        })?;
        if !rechained.gaps.is_empty() {
            let copy =
                async |target: &dyn EventLog| Ok(progress::copy_all(&rechained, target, &mut tally).await?);
            wire::with_log(to, copy).await?;
            report::field("salvaged", format!("{from} into {to}, with new positions and a new head hash"));
            report::tally(&tally);
            report::field("unreadable", report::ranges(&rechained.gaps));
            if tally.position() == Position::START {
                bail!("nothing was salvaged: no commit of {from} can be read");
            }
            return Ok((remains.last_known, rechained.gaps));
        }
    }
    let copied = wire::with_log(to, async |target| {
        match progress::copy_all(&*remains.log, target, &mut tally).await {
            Ok(()) => Ok(None),
            // Reaching the damage is the expected end. An outage is not damage.
            Err(CopyError::Source(reason)) if reason.fault != Fault::Unreachable => Ok(Some(reason)),
            Err(error) => Err(error.into()),
        }
    });
    let reason = copied.await?;
    let end = tally.position();
    if end > Position::START {
        report::field("salvaged", format!("{from} into {to}"));
    }
    report_intact_part(&tally, remains).await;
    if let Some(reason) = reason {
        report::field("reason", reason);
    }
    if end == Position::START {
        bail!("nothing was salvaged: no commit at the start of {from} can be read; check the path");
    }
    let lost = if end < remains.last_known { vec![(end.next(), remains.last_known)] } else { vec![] };
    Ok((end, lost))
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
    match Rechained::open(remains).await.map(|rechained| rechained.gaps) {
        Ok(gaps) if gaps.first().is_some_and(|(first, _)| *first == first_bad) => {
            report::field("unreadable", report::ranges(&gaps));
            let starts = gaps.iter().map(|(_, end)| end.next());
            let ends = gaps[1..].iter().map(|(start, _)| start.before()).chain([last]);
            let left_out: Vec<_> = starts.zip(ends).filter(|(start, end)| start <= end).collect();
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
