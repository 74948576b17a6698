//! `petstore log verify`: reads and checks a whole log. For a damaged log, it reports where and what can be salvaged.

use adapters::event_log::ReadPurpose;
use anyhow::bail;
use application::{
    Digest,
    ports::{Fault, LogError, LogSource, Position},
    transfer::Tally,
};
use clap::builder::styling::AnsiColor;
use serde_json::json;

use super::{progress, report, salvage};
use crate::{config::SourceArgument, output, wire};

pub(super) async fn run(source: &SourceArgument, head: Option<Digest>, json: bool) -> anyhow::Result<()> {
    let url = &source.store;
    let mut tally = Tally::default();
    let (error, first_bad) = match wire::open_source_to(ReadPurpose::Verify, url, &source.access).await {
        Ok(log) => match check(&*log, &mut tally, head).await {
            Ok(known) => {
                if json {
                    let mut object = report::tally_as_json(url, &tally);
                    object["intact"] = (head.is_none() || known.is_some()).into();
                    output::print_line(object);
                } else {
                    let checked = format!("{url}: checksums, positions, hash chain and pet ids");
                    report::field(&output::verdict("verified   ", AnsiColor::Green), checked);
                    report::tally(&tally);
                }
                return match (head, known) {
                    (Some(head), None) => bail!(
                        "the log is consistent, but no position in it has the head hash {head}: it was rewritten or rolled \
                         back, or is a different log"
                    ),
                    (Some(_), Some(position)) if !json => {
                        let checked = "this is the history with the given head hash";
                        report::field("checked", format!("up to position {position}, {checked}"));
                        Ok(())
                    }
                    (_, _) => Ok(()),
                };
            }
            Err(error) => (error, Some(tally.position().next())),
        },
        Err(error) => (error, None),
    };
    if error.fault == Fault::Damaged && json {
        let first_bad = first_bad.map(|position| position.0);
        let object = json!({ "store": url.to_string(), "intact": false, "firstBad": first_bad });
        output::print_line(object);
    } else if error.fault == Fault::Damaged {
        report::field(&output::verdict("damaged    ", AnsiColor::Red), url);
        match (wire::salvage(url).await, first_bad) {
            (Ok(salvaged), _) => salvage::survey(&salvaged, first_bad).await,
            // The store of a running service cannot be salvaged.
            (Err(_), Some(first_bad)) => report::field("first bad", first_bad),
            (Err(_), None) => {}
        }
    }
    Err(error.into())
}

/// Reads and checks the whole log, and returns the last position with this head hash, if there is one.
async fn check(
    log: &dyn LogSource,
    tally: &mut Tally,
    head: Option<Digest>,
) -> Result<Option<Position>, LogError> {
    let mut known = None;
    progress::check_all(log, tally, |commit| {
        if head == Some(commit.previous) {
            known = Some(commit.position.before());
        }
    })
    .await?;
    if head.is_some() && head == tally.head_hash() {
        known = Some(tally.position());
    }
    Ok(known)
}
