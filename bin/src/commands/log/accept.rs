//! `petstore log accept`: lets a node use a log that lacks commits which the node has applied.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
};

use anyhow::{anyhow, bail};
use application::{
    ports::{EventLog, Fault, LogError, LogIdentity, Position, Version},
    transfer::commit_at,
};
use chrono::{DateTime, Utc};

use super::report;
use crate::{output, state_recorder::state_file, store_url::StoreUrl, wire};

pub(super) async fn run(url: &StoreUrl, state: &Path, yes: bool) -> anyhow::Result<()> {
    if state == Path::new("none") {
        bail!("--state none: a node without a state file accepts any log");
    }
    let Some(file) = state_file(url, state)? else {
        bail!("{url} has no state file: name the store of a node with --store");
    };
    let recorded = match file.read() {
        Ok(Some(recorded)) => Ok(recorded),
        Ok(None) => bail!(
            "{} holds no state file of {url}: name the directory of the node with --state; a node without a state file \
             accepts any log",
            state.display()
        ),
        Err(damage) if damage.kind() == io::ErrorKind::InvalidData => Err(damage),
        Err(error) => bail!("cannot read the state file {}: {error}", file.file().display()),
    };
    let newest = recorded.as_ref().map_or(Version::START, |recorded| recorded.version());
    let (found, has_recorded, description) = match wire::open_log(url, Some(newest)).await {
        Ok(log) => {
            let found = look_at(&*log, recorded.as_ref().ok()).await;
            wire::close_log(&*log).await;
            found?
        }
        Err(missing) if missing.fault == Fault::AnotherLog => (None, false, format!("missing: {missing}")),
        Err(error) => return Err(error.into()),
    };
    report::field("store", url);
    report::field("log", description);
    match &recorded {
        Ok(recorded) => report::field("applied", at(recorded.position, recorded.newest.time())),
        Err(damage) => report::field("applied", format!("unknown: the state file cannot be read ({damage})")),
    }
    if has_recorded {
        let next = "restart the node if it is not ready";
        report::field(
            "accepted",
            format!("nothing to accept: the log holds every commit that the node has applied; {next}"),
        );
        return Ok(());
    }
    report::field("given up", given_up(recorded.as_ref().ok(), found));
    if !yes && !confirm()? {
        bail!("not accepted: nothing was changed");
    }
    file.accept(recorded.ok(), found, Utc::now())
        .map_err(|error| anyhow!("cannot replace the state file {}: {error}", file.file().display()))?;
    report::field("accepted", format!("start the service; {} has a line about it", file.journal().display()));
    Ok(())
}

/// Returns the log as it is now, whether it holds the recorded commit, and a description.
async fn look_at(
    log: &dyn EventLog,
    recorded: Option<&LogIdentity>,
) -> Result<(Option<LogIdentity>, bool, String), LogError> {
    let head = log.head().await?;
    if head == Position::START {
        return Ok((None, false, "empty".to_owned()));
    }
    let (_, first) = commit_at(log, Position::START.next()).await?;
    let (_, last) = commit_at(log, head).await?;
    let has_recorded = match recorded {
        Some(recorded) if recorded.first == first.id && recorded.position <= head => {
            commit_at(log, recorded.position).await?.1.id == recorded.newest
        }
        Some(_) | None => false,
    };
    let found = LogIdentity { first: first.id, position: head, newest: last.id };
    Ok((Some(found), has_recorded, at(head, Some(last.time))))
}

/// Describes the commits that the node has applied and that the log lacks.
fn given_up(recorded: Option<&LogIdentity>, found: Option<LogIdentity>) -> String {
    let Some(recorded) = recorded else {
        return "unknown: commits that the node has applied may be missing from the log".to_owned();
    };
    let newest = recorded.position;
    let lost = match found {
        Some(log) if log.first == recorded.first && log.position < newest => {
            format!("at least {}", positions(log.position.next(), newest))
        }
        Some(log) if log.first == recorded.first => {
            format!("at least {}, where the log holds a different commit", positions(newest, newest))
        }
        Some(_) => format!("{}: the log begins with a different commit", positions(Position(1), newest)),
        None => positions(Position(1), newest),
    };
    format!("{lost}; the ids of their pets are assigned again")
}

fn positions(first: Position, last: Position) -> String {
    let count = last.0 - first.0 + 1;
    let (commits, word) = if count == 1 { ("commit", "position") } else { ("commits", "positions") };
    format!("{count} {commits}, {word} {}", report::ranges(&[(first, last)]))
}

fn at(position: Position, time: Option<DateTime<Utc>>) -> String {
    let time = time.map(|time| format!(", at {}", report::seconds(time)));
    format!("up to position {position}{}", time.unwrap_or_default())
}

/// Asks on the terminal.
fn confirm() -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!(
            "not accepted: there is no terminal to ask on; pass --yes to accept the log without a question"
        );
    }
    output::check()?;
    let mut error_output = io::stderr();
    write!(error_output, "Give up these commits and accept this log? Type yes: ")?;
    error_output.flush()?;
    let mut reply = String::new();
    io::stdin().read_line(&mut reply)?;
    Ok(reply.trim() == "yes")
}
