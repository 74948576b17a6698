//! The arguments of `petstore log`.

use std::{
    env,
    fs::File,
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::PathBuf,
    time::Duration,
};

use adapters::access::api_keys::KeyHash;
use application::{Digest, RequestKey, ports::Position, transfer::End};
use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use clap::{Args, Subcommand};
use domain::PetId;

use super::{API_KEY_VARIABLE, DEFAULT_KEYS, duration};
use crate::{engines::DEFAULT_STORE, store_url::StoreUrl};

/// The help of `--until`.
const UNTIL: &str = "End with the commit at this position, or before the first commit that is later than this time: \
                     2026-11-15T08:00:00Z, 2026-11-15, or how long ago, such as 12h. A time also prints the last position with \
                     an earlier time, because clocks differ";
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The maximum size of a file with an API key, in bytes.
const KEY_MAX: u64 = 1_024;

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Show the size and age of the log, and the durability that its engine promises.
    Stat {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: SourceArgument,
    },
    /// Read and check the whole log: checksums, positions, the hash chain, pet ids and the high-water mark.
    /// Prints the head hash, or the first bad position and what can be salvaged.
    Verify {
        /// Check that the log contains the history with this head hash, e.g. from the manifest of an export.
        #[arg(long, value_name = "HASH")]
        head: Option<Digest>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: SourceArgument,
    },
    /// Write every commit to standard output as one line of JSON, and a manifest as the last line.
    Export {
        #[command(flatten)]
        source: SourceArgument,
        #[arg(long, help = UNTIL, value_name = "POSITION|TIME", value_parser = end)]
        until: Option<End>,
    },
    /// Import an exported history into an empty log, or resume an interrupted import.
    Import {
        /// The exported file, or - for standard input.
        #[arg(default_value = "-")]
        file: PathBuf,
        /// The target (see petstore serve).
        #[arg(long, env = "PETSTORE_STORE", hide_env_values = true, default_value = DEFAULT_STORE, value_name = "URL")]
        store: StoreUrl,
        #[arg(long, help = UNTIL, value_name = "POSITION|TIME", value_parser = end)]
        until: Option<End>,
    },
    /// Copy a history to another engine, byte for byte, resume an interrupted copy, or keep a copy up to date.
    Copy {
        /// The log to copy.
        #[arg(long, value_name = "URL")]
        from: StoreUrl,
        /// The target: an empty log, or one that holds the beginning of the same history.
        #[arg(long, value_name = "URL")]
        to: StoreUrl,
        /// Keep copying new commits until interrupted, and report the lag of the target.
        #[arg(long, conflicts_with = "until")]
        follow: bool,
        /// How often --follow reports the lag.
        #[arg(long, default_value = "10s", value_name = "TIME", value_parser = interval)]
        report_every: Duration,
        #[arg(long, help = UNTIL, value_name = "POSITION|TIME", value_parser = end)]
        until: Option<End>,
        #[command(flatten)]
        access: AccessArguments,
    },
    /// Copy the intact part of a damaged log into a new one, and report the unreadable positions. Other copies of the log
    /// can fill its gaps. The damaged log and the copies are not changed. The exit status is 3 if the new log is incomplete.
    Salvage {
        /// The damaged log.
        #[arg(long, value_name = "URL")]
        from: StoreUrl,
        /// The target: a new log, or one that an interrupted salvage has started to fill.
        #[arg(long, value_name = "URL")]
        to: StoreUrl,
        /// Another copy of the same log, damaged or not, or `https://HOST:PORT` of a running service. At each position, an
        /// intact commit is taken from the first of the stores that has one. Repeat the flag for more copies.
        #[arg(long, value_name = "URL")]
        also: Vec<StoreUrl>,
        /// If the stores hold different histories, take the one with this head hash, and end with it.
        #[arg(long, value_name = "HASH", requires = "also")]
        head: Option<Digest>,
        #[command(flatten)]
        access: AccessArguments,
        /// If commits are missing, copy every readable one, including those after a gap. The pets keep their ids, times,
        /// owners and idempotency keys, but from the first gap on, the target has a new history.
        #[arg(long)]
        accept_gaps: bool,
    },
    /// Print the events of the last commits, one on each line, then new ones as they arrive, until interrupted. A log in
    /// files can be open in only one process, so the command ends after its last commit; to follow it, use the URL of
    /// the running service.
    Tail {
        /// Start after this position instead of ten commits before the end.
        #[arg(long, value_name = "POSITION")]
        after: Option<u64>,
        /// Print each commit as the line of JSON that is stored.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: SourceArgument,
    },
    /// Accept a log that the service has rejected because it lacks commits which the node has applied. Prints these
    /// commits, asks for confirmation, replaces the state file and adds a line to accepted.jsonl next to it.
    /// Restart the nodes of this state directory afterwards.
    Accept {
        /// The store of the node (see petstore serve).
        #[arg(long, env = "PETSTORE_STORE", hide_env_values = true, default_value = DEFAULT_STORE, value_name = "URL")]
        store: StoreUrl,
        /// Directory of the state file, as for petstore serve.
        #[arg(long, env = "PETSTORE_STATE", default_value = "petstore-data", value_name = "DIR")]
        state: PathBuf,
        /// Accept without asking.
        #[arg(long)]
        yes: bool,
    },
    /// Print all events, or those of a pet, an owner, a time or an idempotency key. The exit status is 1 if no event matches.
    Find(FindArguments),
}

/// The conditions that an event must meet, all of them, and where to find it. Without any, every event is found.
#[derive(Debug, Args)]
pub(crate) struct FindArguments {
    /// The id of a pet.
    #[arg(long, value_name = "ID", value_parser = pet_id)]
    pub(crate) pet: Option<PetId>,
    /// The owner of an API key, or the name of its keys, as shown by `petstore keys list`. A name is looked up in --keys.
    #[arg(long, value_name = "OWNER|NAME")]
    pub(crate) by: Option<String>,
    /// Only events from this time on: 2026-11-15, 2026-11-15T08:00:00Z, or how long ago, such as 12h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<DateTime<Utc>>,
    /// The Idempotency-Key of a request.
    #[arg(long, value_name = "KEY", value_parser = |key: &str| RequestKey::new(key))]
    pub(crate) idempotency_key: Option<RequestKey>,
    /// Print each event as one line of JSON, with the position, id and time of its commit.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) source: SourceArgument,
    /// The key file.
    #[arg(long, env = "PETSTORE_KEYS", default_value = DEFAULT_KEYS, value_name = "FILE")]
    pub(crate) keys: PathBuf,
}

/// The log to read.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgument {
    /// Where the log is stored (see petstore serve), or `https://HOST:PORT` of the admin listener of a running service.
    #[arg(long, env = "PETSTORE_STORE", hide_env_values = true, default_value = DEFAULT_STORE, value_name = "URL")]
    pub(crate) store: StoreUrl,
    #[command(flatten)]
    pub(crate) access: AccessArguments,
}

/// Access to the log of a running service. Other logs need none of it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AccessArguments {
    /// File with an API key that has the scope "log", for the log of a running service. Alternatively, set
    /// `PETSTORE_API_KEY` to the key.
    #[arg(long, env = "PETSTORE_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// File with the certificates (PEM) to trust for https [default: those of the system]
    #[arg(long, env = "PETSTORE_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

impl AccessArguments {
    /// The API key, if there is one.
    pub(crate) fn key(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.api_key_file else {
            return Ok(env::var(API_KEY_VARIABLE).ok().filter(|key| !key.is_empty()));
        };
        if file.to_str().and_then(KeyHash::of_presented).is_some() {
            return Err(format!(
                "--api-key-file is an API key, not a file: write the key to a file, or set {API_KEY_VARIABLE}"
            ));
        }
        let path = file.display();
        let unreadable =
            |error| format!("cannot read the API key in {path}: {error}; name its file with --api-key-file");
        let opened = File::open(file).map_err(unreadable)?;
        let metadata = opened.metadata().map_err(unreadable)?;
        if !metadata.is_file() && !metadata.file_type().is_fifo() {
            return Err(format!("{path} is not a file with an API key: name one with --api-key-file"));
        }
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(format!("other users have access to the API key in {path}: run chmod 600 {path}"));
        }
        let mut key = String::new();
        opened.take(KEY_MAX).read_to_string(&mut key).map_err(unreadable)?;
        if key.trim().is_empty() {
            return Err(format!("{path} is empty: it must hold one API key"));
        }
        Ok(Some(key))
    }
}

fn end(text: &str) -> Result<End, String> {
    let end = if text.bytes().all(|digit| digit.is_ascii_digit()) {
        text.parse().ok().filter(|position| *position > 0).map(|position| End::Position(Position(position)))
    } else {
        point_in_time(text).map(End::Time)
    };
    end.ok_or_else(|| format!("expected a position from 1 upwards, {TIME_FORMS}"))
}

/// The times that [`point_in_time`] accepts.
const TIME_FORMS: &str =
    "a time with its offset such as 2026-11-15T08:00:00Z, a date such as 2026-11-15, or an age such as 12h";

/// Parses a time, the start of a day in UTC, or how long ago it was.
fn time(text: &str) -> Result<DateTime<Utc>, String> {
    point_in_time(text).ok_or_else(|| format!("expected {TIME_FORMS}"))
}

fn point_in_time(text: &str) -> Option<DateTime<Utc>> {
    let time = || DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc());
    let date = || text.parse().ok().map(|date: NaiveDate| date.and_time(NaiveTime::MIN).and_utc());
    let ago = || {
        let span = TimeDelta::from_std(humantime::parse_duration(text).ok()?).ok()?;
        Utc::now().checked_sub_signed(span)
    };
    time().or_else(date).or_else(ago)
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let interval = duration(text)?;
    if interval < INTERVAL_MIN { Err("the shortest interval is 100ms") } else { Ok(interval) }
}

fn pet_id(text: &str) -> Result<PetId, &'static str> {
    let id = text.parse().map_err(|_| "expected a number from 1 upwards")?;
    PetId::new(id)
}
