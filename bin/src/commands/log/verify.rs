//! `petstore log verify`: reads and checks a whole log. For a damaged log, it reports where and what can be salvaged.

use anyhow::bail;
use application::{
    Digest,
    ports::{Fault, LogError, LogSource, Position},
    transfer::{Broken, Tally},
};

use super::{progress, report, salvage};
use crate::{config::SourceArgument, wire};

pub(super) async fn run(source: &SourceArgument, head: Option<Digest>) -> anyhow::Result<()> {
    let url = &source.store;
    let (error, first_bad) = match wire::open_source(url, &source.access.access()?).await {
        Ok(log) => match check(&*log, head).await {
            Ok((tally, known)) => {
                report::field(
                    "verified",
                    format_args!("{url}: checksums, positions, hash chain and pet ids"),
                );
                report::tally(&tally);
                return report_head(head, known);
            }
            Err(Broken { error, intact }) => (error, Some(intact.position().next())),
        },
        Err(error) => (error, None),
    };
    if error.fault == Fault::Damaged {
        report::field("damaged", url);
        // A failure here does not hide the damage.
        if let Ok(salvaged) = wire::salvage(url).await {
            salvage::survey(&salvaged, first_bad).await;
        }
    }
    Err(error.into())
}

/// Reads and checks the whole log, and returns the last position with this head hash, if there is one.
async fn check(
    log: &dyn LogSource,
    head: Option<Digest>,
) -> Result<(Tally, Option<Position>), Broken<LogError>> {
    let mut known = None;
    let tally = progress::check_all(log, |commit| {
        if head == Some(commit.previous) {
            known = Some(Position(commit.position.0 - 1));
        }
    })
    .await?;
    if head.is_some() && head == tally.head_hash() {
        known = Some(tally.position());
    }
    Ok((tally, known))
}

/// Reports whether the history has the given head hash. `known` is the position where it has it, if any.
fn report_head(head: Option<Digest>, known: Option<Position>) -> anyhow::Result<()> {
    match (head, known) {
        (None, _) => Ok(()),
        (Some(_), Some(position)) => {
            report::field(
                "checked",
                format!("up to position {position}, this is the history with the given head hash"),
            );
            Ok(())
        }
        (Some(head), None) => bail!(
            "the log is consistent, but no position in it has the head hash {head}: it was rewritten or rolled \
             back, or is a different log"
        ),
    }
}
