//! `petstore log copy`: copies a history to another engine. With `--follow`, keeps the copy up to date, and reports its
//! lag.

use std::{cell::Cell, convert::Infallible, time::Duration};

use anyhow::{anyhow, bail};
use application::{
    LogAccess,
    ports::{Fault, LogError, LogSource, Position},
    transfer::{self, CopyError, CopyStep, End, Tally, Until},
};
use tokio::time;

use super::{advise, progress, report, until};
use crate::{config::AccessArguments, stop_signals::StopSignals, store_url::StoreUrl, wire};

/// How long the source may take to return its head when the copy ends.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// The delay before an unreachable log is opened again.
const REOPEN_DELAY: Duration = Duration::from_secs(1);

/// Copies up to the head, or up to the given end.
pub(super) async fn run(
    from: &StoreUrl,
    to: &StoreUrl,
    until: Option<End>,
    access: &AccessArguments,
) -> anyhow::Result<()> {
    let (source, cut) = until::open_source(from, access, until).await?;
    wire::with_log(to, async |target| {
        let before = target.head().await?;
        let mut copied = Tally::default();
        progress::copy_all(&*source, target, &mut copied).await?;
        until::check_target(until, to, before, copied.position())?;
        report::stored("copied", format!("{from} to {to}"), to, before, &copied);
        report::until(&cut);
        Ok(())
    })
    .await
}

/// Copies until it is interrupted.
pub(super) async fn follow(
    from: &StoreUrl,
    to: &StoreUrl,
    access: &AccessArguments,
    report_every: Duration,
) -> anyhow::Result<()> {
    if from.access() == LogAccess::Exclusive {
        bail!(
            "{from} cannot grow while this command has it open: use the --admin-listen address of the service that writes \
             to it (https://HOST:PORT)"
        );
    }
    let mut signals = StopSignals::of_command()?;
    let opened = async {
        let source = retrying(async || wire::open_source(from, access).await).await?;
        Ok::<_, LogError>((source, retrying(async || wire::open_log(to).await).await?))
    };
    let (source, target) = tokio::select! {
        opened = opened => opened?,
        () = signals.received() => return Ok(()),
    };
    let reached = Cell::new(Position::START);
    let (mut waiting, mut tally) = (false, Tally::default());
    let copying = transfer::copy(&*source, &*target, Until::Stopped, &mut tally, |step| match step {
        CopyStep::Resumed(position) => {
            let what = if waiting { "resumed" } else { "following" };
            report::field(what, format!("{from} after position {position}, to {to}"));
            waiting = false;
            reached.set(position);
        }
        CopyStep::Stored(commit) => reached.set(commit.position),
        CopyStep::Waiting(error) => {
            // Once for each outage.
            if !waiting {
                report::field("waiting", error);
            }
            waiting = true;
        }
    });
    tokio::select! {
        ended = copying => {
            let error = ended.expect_err("a copy that follows its source ends only with an error");
            wire::close_log(&*target).await;
            return Err(anyhow!("{}; the copy ends at position {}", advise(error.into()), tally.position()));
        }
        never = report_lag(&*source, &*target, &reached, report_every) => match never {},
        () = signals.received() => {}
    }
    // An append that was interrupted may have been stored.
    let ended = target.head().await;
    wire::close_log(&*target).await;
    let position = match ended {
        Ok(position) => position,
        Err(error) => {
            report::field(
                "stopped",
                format!("{}; the copy was at position {}", of_target(error), reached.get()),
            );
            return Ok(());
        }
    };
    report::field("stopped", format!("the copy ends at position {position}"));
    let behind = match time::timeout(HEAD_TIMEOUT, source.head()).await {
        Ok(Ok(head)) => match commits_after(position, head) {
            Ok(lag) => report::commits(lag),
            Err(error) => format!("unknown: {error}"),
        },
        Ok(Err(error)) => format!("unknown: {error}; later commits are not in the copy"),
        Err(_) => "unknown: the source does not respond; later commits are not in the copy".to_owned(),
    };
    report::field("behind", behind);
    report::field(
        "next",
        format!(
            "run the same command to resume; to serve the copy, first get the key file of the service, which is not in the \
             log: petstore serve --store {to} --keys FILE"
        ),
    );
    Ok(())
}

/// Opens a log, and retries while it is unreachable.
async fn retrying<L>(open: impl AsyncFn() -> Result<L, LogError>) -> Result<L, LogError> {
    let mut waiting = false;
    loop {
        match open().await {
            Err(error) if error.fault == Fault::Unreachable => {
                if !waiting {
                    report::field("waiting", error);
                }
                waiting = true;
                time::sleep(REOPEN_DELAY).await;
            }
            opened => return opened,
        }
    }
}

/// Reports at intervals how many commits of the source are missing from the copy.
async fn report_lag(
    source: &dyn LogSource,
    target: &dyn LogSource,
    reached: &Cell<Position>,
    every: Duration,
) -> Infallible {
    loop {
        time::sleep(every).await;
        // The position is read before the head, so that the lag is never too small.
        let position = reached.get();
        let behind = match lag(source, target, position).await {
            Ok(lag) => format!("{}; the copy is at position {position}", report::commits(lag)),
            Err(reason) => format!("unknown: {reason}; the copy was at position {position}"),
        };
        report::field("behind", behind);
    }
}

/// Counts the commits of the source after this position of the copy, or says why the number is unknown. Asks the target
/// too: nothing else would show that the target of an idle copy is lost.
async fn lag(source: &dyn LogSource, target: &dyn LogSource, reached: Position) -> Result<u64, String> {
    let head = source.head().await.map_err(|error| error.to_string())?;
    match target.head().await {
        Ok(end) if end < reached => Err(format!("the target ends at position {end}")),
        Ok(_) => commits_after(reached, head).map_err(|error| error.to_string()),
        Err(error) => Err(of_target(error).to_string()),
    }
}

/// The error of the target, with advice.
fn of_target(error: LogError) -> anyhow::Error {
    advise(CopyError::Target(error).into())
}

/// Fails if the source ends before the copy.
fn commits_after(reached: Position, head: Position) -> Result<u64, CopyError> {
    let behind = CopyError::SourceBehind { source_head: head, target_head: reached };
    head.0.checked_sub(reached.0).ok_or(behind)
}
