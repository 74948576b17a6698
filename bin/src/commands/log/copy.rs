//! `petstore log copy`: copies a history to another engine. With `--follow`, keeps the copy up to date, and reports its
//! lag.

use std::{
    cell::Cell,
    convert::Infallible,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use application::{
    LogAccess,
    ports::{Fault, LogError, LogSource, Position},
    transfer::{self, CopyStep, Tally, Until},
};
use chrono::{DateTime, SecondsFormat, Utc};
use tokio::{sync::watch, time};

use super::{progress, report};
use crate::{config::AccessArguments, stop_signals::StopSignals, store_url::StoreUrl, wire};

/// How long the source may take to return its head when the copy ends.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// The delay before an unreachable log is opened again.
const REOPEN_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, Default)]
struct Reached {
    position: Position,
    /// The time of its last commit, by the clock of the node that wrote it.
    time: Option<DateTime<Utc>>,
}

/// The last measured lag of the copy.
#[derive(Debug, Clone, Copy)]
struct Lag {
    commits: u64,
    millis: u128,
    measured: Instant,
}

/// Copies up to the head.
pub(super) async fn run(from: &StoreUrl, to: &StoreUrl, access: &AccessArguments) -> anyhow::Result<()> {
    let source = wire::open_source(from, access).await?;
    wire::with_log(to, async |target| {
        let before = target.head().await?;
        let mut copied = Tally::default();
        progress::copy_all(&*source, target, &mut copied).await?;
        report::stored("copied", format!("{from} to {to}"), to, before, &copied);
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
    let mut signals = StopSignals::new()?;
    let opened = async {
        let source = retrying(async || wire::open_source(from, access).await).await?;
        Ok::<_, LogError>((source, retrying(async || wire::open_log(to).await).await?))
    };
    let (source, target) = tokio::select! {
        opened = opened => opened?,
        () = signals.received() => return Ok(()),
    };
    let reached = watch::Sender::new(Reached::default());
    let (mut waiting, mut tally, lag) = (false, Tally::default(), Cell::new(None));
    let copying = transfer::copy(&*source, &*target, Until::Stopped, &mut tally, |step| match step {
        CopyStep::Resumed(position) => {
            let what = if waiting { "resumed" } else { "following" };
            report::field(what, format!("{from} after position {position}, to {to}"));
            waiting = false;
            reached.send_modify(|reached| reached.position = position);
        }
        CopyStep::Stored(commit) => {
            reached.send_replace(Reached { position: commit.position, time: Some(commit.time) });
        }
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
            return Err(anyhow!("{error}; the copy ends at position {}", tally.position()));
        }
        never = report_lag(&*source, reached.subscribe(), &lag, report_every) => match never {},
        () = signals.received() => {}
    }
    // An append that was interrupted may have been stored.
    let position = target.head().await.unwrap_or(reached.borrow().position);
    wire::close_log(&*target).await;
    report::field("stopped", format!("the copy ends at position {position}"));
    if let Some(time) = reached.borrow().time {
        report::field("last", time.to_rfc3339_opts(SecondsFormat::Millis, true));
    }
    let behind = match time::timeout(HEAD_TIMEOUT, source.head()).await {
        Ok(Ok(head)) => format!("{} commits", head.0.saturating_sub(position.0)),
        Ok(Err(error)) => format!("unknown: {error}; later commits are not in the copy"),
        Err(_) => "unknown: the source does not respond; later commits are not in the copy".to_owned(),
    };
    report::field("behind", behind);
    if let Some(Lag { commits, millis, measured }) = lag.get() {
        let ago = measured.elapsed().as_millis();
        report::field("lag", format!("{commits} commits, {millis} ms (measured {ago} ms ago)"));
    }
    report::field(
        "next",
        format!("run the same command to resume, or petstore serve --store {to} to serve the copy"),
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

/// Reports the lag at intervals. It measures how long the copy takes to reach the current head of the source, so no two
/// clocks are compared.
async fn report_lag(
    source: &dyn LogSource,
    mut reached: watch::Receiver<Reached>,
    lag: &Cell<Option<Lag>>,
    every: Duration,
) -> Infallible {
    loop {
        time::sleep(every).await;
        let asked = Instant::now();
        let head = match source.head().await {
            Ok(head) => head,
            Err(error) => {
                report::field("behind", format!("unknown: {error}"));
                continue;
            }
        };
        let commits = head.0.saturating_sub(reached.borrow().position.0);
        let caught_up =
            time::timeout(every, reached.wait_for(|reached| reached.position >= head)).await.is_ok();
        let (than, millis) = (if caught_up { "" } else { "more than " }, asked.elapsed().as_millis());
        lag.set(Some(Lag { commits, millis, measured: asked }));
        let position = reached.borrow().position;
        report::field(
            "behind",
            format!("{commits} commits, {than}{millis} ms; the copy is at position {position}"),
        );
    }
}
