//! `petstore log copy`: copies a history to another engine. With `--follow`, keeps the copy up to date, and reports its
//! lag.

use std::{cell::Cell, convert::Infallible, time::Duration};

use anyhow::{anyhow, bail};
use application::{
    LogAccess,
    ports::{LogError, LogSource, Position},
    transfer::{self, CopyError, CopyStep, End},
};
use tokio::{sync::OnceCell, time};

use super::{advise, progress, report, until};
use crate::{
    config::AccessArguments,
    engines::{Log, Source},
    stop_signals::StopSignals,
    store_url::StoreUrl,
    wire,
};

/// How long the source may take to return its head when the copy ends.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

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
        let mut copied = cut.tally();
        progress::copy_all(&*source, target, &mut copied).await?;
        report::stored("copied", format!("{from} to {to}"), to, before, &copied, &cut)
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
    let logs = OnceCell::new();
    let open = async || {
        let opened = logs.get_or_try_init(async || {
            let source = wire::open_source(from, access).await.map_err(CopyError::Source)?;
            Ok((source, wire::open_log(to, None).await.map_err(CopyError::Target)?))
        });
        opened.await.map(|(source, target)| (&**source, &**target))
    };
    let (reached, mut waiting) = (Cell::new(Position::START), false);
    let copying = transfer::follow(open, |step| match step {
        CopyStep::Resumed(position) => {
            let what = if waiting { "resumed" } else { "following" };
            report::field(what, format!("{from} after position {position}, to {to}"));
            waiting = false;
            reached.set(position.max(reached.get()));
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
    let failed = tokio::select! {
        error = copying => Some(error),
        never = report_lag(&logs, &reached, report_every) => match never {},
        () = signals.received() => None,
    };
    let Some((source, target)) = logs.get() else {
        return failed.map_or(Ok(()), |error| Err(advise(error.into())));
    };
    if let Some(error) = failed {
        wire::close_log(&**target).await;
        return Err(anyhow!("{}; the copy ends at position {}", advise(error.into()), reached.get()));
    }
    // An append that was interrupted may have been stored.
    let ended = target.head().await;
    wire::close_log(&**target).await;
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
        Ok(Ok(head)) => commits_after(position, head).unwrap_or_else(|error| format!("unknown: {error}")),
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

/// Reports at intervals how many commits of the source are missing from the copy.
async fn report_lag(logs: &OnceCell<(Source, Log)>, reached: &Cell<Position>, every: Duration) -> Infallible {
    loop {
        time::sleep(every).await;
        let Some((source, target)) = logs.get() else { continue };
        // The position is read before the head, so that the lag is never too small.
        let position = reached.get();
        let behind = match lag(&**source, &**target, position).await {
            Ok(lag) => format!("{lag}; the copy is at position {position}"),
            Err(reason) => format!("unknown: {reason}; the copy was at position {position}"),
        };
        report::field("behind", behind);
    }
}

/// Counts the commits of the source after this position of the copy. Asks the target too: nothing else would show that the
/// target of an idle copy is lost.
async fn lag(source: &dyn LogSource, target: &dyn LogSource, reached: Position) -> anyhow::Result<String> {
    let head = source.head().await?;
    let end = target.head().await.map_err(of_target)?;
    if end < reached {
        bail!("the target ends at position {end}");
    }
    commits_after(reached, head)
}

/// The error of the target, with advice.
fn of_target(error: LogError) -> anyhow::Error {
    advise(CopyError::Target(error).into())
}

/// Fails if the source ends before the copy.
fn commits_after(reached: Position, head: Position) -> anyhow::Result<String> {
    let behind = CopyError::SourceBehind { source_head: head, target_head: reached };
    Ok(report::commits(head.0.checked_sub(reached.0).ok_or(behind)?))
}
