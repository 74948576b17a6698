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
use chrono::{DateTime, SecondsFormat, Utc};

use super::report;
use crate::{
    config::{AcceptArguments, StoreArgument},
    output,
    state_recorder::state_file,
    wire,
};

/// The log as it is now.
enum Found {
    /// There is no log. The detail says where.
    Missing(LogError),
    Empty,
    Holds {
        identity: LogIdentity,
        last: DateTime<Utc>,
        /// The recorded commit is in this log.
        has_recorded: bool,
    },
}

impl Found {
    fn identity(&self) -> Option<LogIdentity> {
        match self {
            Self::Missing(_) | Self::Empty => None,
            Self::Holds { identity, .. } => Some(*identity),
        }
    }
}

pub(super) async fn run(arguments: &AcceptArguments) -> anyhow::Result<()> {
    let AcceptArguments { store: StoreArgument { store: url }, state, yes } = arguments;
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
    let found = match wire::open_known_log(url, Some(newest)).await {
        Ok(log) => {
            let found = look_at(&*log, recorded.as_ref().ok()).await;
            wire::close_log(&*log).await;
            found?
        }
        Err(missing) if missing.fault == Fault::AnotherLog => Found::Missing(missing),
        Err(error) => return Err(error.into()),
    };
    report::field("store", url);
    report::field("log", describe(&found));
    match &recorded {
        Ok(recorded) => report::field("applied", at(recorded.position, recorded.newest.time())),
        Err(damage) => report::field("applied", format!("unknown: the state file cannot be read ({damage})")),
    }
    if let Found::Holds { has_recorded: true, .. } = found {
        let next = "restart the node if it is not ready";
        report::field(
            "accepted",
            format!("nothing to accept: the log holds every commit that the node has applied; {next}"),
        );
        return Ok(());
    }
    report::field("given up", given_up(recorded.as_ref().ok(), &found));
    if !yes && !confirm()? {
        bail!("not accepted: nothing was changed");
    }
    let (seen, accepted) = (recorded.ok(), found.identity());
    file.accept(seen, accepted, Utc::now())
        .map_err(|error| anyhow!("cannot replace the state file {}: {error}", file.file().display()))?;
    report::field("accepted", format!("start the service; {} has a line about it", file.journal().display()));
    Ok(())
}

async fn look_at(log: &dyn EventLog, recorded: Option<&LogIdentity>) -> Result<Found, LogError> {
    let head = log.head().await?;
    if head == Position::START {
        return Ok(Found::Empty);
    }
    let (_, first) = commit_at(log, Position::START.next()).await?;
    let (_, last) = commit_at(log, head).await?;
    let has_recorded = match recorded {
        Some(recorded) if recorded.first == first.id && recorded.position <= head => {
            commit_at(log, recorded.position).await?.1.id == recorded.newest
        }
        Some(_) | None => false,
    };
    let identity = LogIdentity { first: first.id, position: head, newest: last.id };
    Ok(Found::Holds { identity, last: last.time, has_recorded })
}

fn describe(found: &Found) -> String {
    match found {
        Found::Missing(missing) => format!("missing: {missing}"),
        Found::Empty => "empty".to_owned(),
        Found::Holds { identity, last, .. } => at(identity.position, Some(*last)),
    }
}

/// Describes the commits that the node has applied and that the log lacks.
fn given_up(recorded: Option<&LogIdentity>, found: &Found) -> String {
    let Some(recorded) = recorded else {
        return "unknown: commits that the node has applied may be missing from the log".to_owned();
    };
    let newest = recorded.position;
    let lost = match found.identity() {
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
    let time = time.map(|time| format!(", at {}", time.to_rfc3339_opts(SecondsFormat::Secs, true)));
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
