//! The arguments of the program. Every flag of `serve` has an environment variable of the same name. Other commands have
//! variables only for connection settings, because a forgotten one would change what a single command does.

mod client_limits;
mod listeners;
mod log;
mod summary;

use std::{
    env,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use adapters::http::{AccessLog, ContactUrl, Origin, ServerUrl, Site};
use application::ports::DurabilityLevel;
use clap::{
    Args, CommandFactory as _, Parser, Subcommand, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};

use self::client_limits::ClientLimitArguments;
use crate::{
    commands::{
        completions::CompletionsArguments, health::HealthArguments, keys::KeysCommand, man::ManArguments,
    },
    store_url::StoreUrl,
    version,
    wire::StoreOptions,
};

pub(crate) use log::{AccessArguments, LogCommand, SourceArgument};

/// An inventory service for a pet store, on a durable append-only log.
#[derive(Debug, Parser)]
#[command(name = "petstore", version, long_version = version::LONG.as_str(), propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the arguments of this process. Ends it after a mistake, and for `--help`.
    pub(crate) fn from_arguments() -> Self {
        Self::try_parse().unwrap_or_else(|mut error| {
            if let Some((flag, value)) = negative_value(&error, env::args()) {
                let message = format!("invalid value '{value}' for '{flag}': it must not be negative");
                Self::command().error(ErrorKind::InvalidValue, message).exit();
            }
            // The names of this flag in other servers.
            let unknown = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            if matches!(unknown.as_deref(), Some("--port" | "--host" | "--bind" | "--address")) {
                let hint = "address and port are given together, for example --listen 127.0.0.1:8080";
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::Usage);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
            }
            error.exit()
        })
    }
}

/// The flag and the value, if the mistake is a negative number, which looks like a flag to the parser.
fn negative_value(error: &clap::Error, arguments: impl Iterator<Item = String>) -> Option<(String, String)> {
    let is_negative = |text: &str| {
        text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let arguments: Vec<_> = arguments.collect();
            let pair =
                arguments.windows(2).find(|pair| pair[0].starts_with("--") && is_negative(&pair[1]))?;
            Some((pair[0].clone(), pair[1].clone()))
        }
        ErrorKind::ValueValidation => {
            let context = |kind| error.get(kind).map(ToString::to_string);
            let value = context(ContextKind::InvalidValue).filter(|value| is_negative(value))?;
            Some((context(ContextKind::InvalidArg)?, value))
        }
        _ => None,
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the service until it receives SIGTERM or Ctrl-C.
    Serve(Box<ServeArguments>),
    /// Issue, list, rotate and revoke API keys. A running service picks up changes within two seconds.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Inspect, check, search, export, copy and salvage a log. A sled or SQLite log must not be in use, but a running service
    /// can be asked for its log.
    #[command(subcommand)]
    Log(LogCommand),
    /// Print the OpenAPI 3.1 document that the service serves at /openapi.json.
    Openapi(AddressArguments),
    /// Ask a running service whether it is ready or alive.
    ///
    /// Prints its report. The exit code is 0 if it is, 1 if it reports that it is not, and 3 if there is no such response.
    Health(HealthArguments),
    /// Print a completion script for a shell.
    Completions(CompletionsArguments),
    /// Print the manual page.
    Man(ManArguments),
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ServeArguments {
    /// Address and port to listen on. Port 0 picks a free port.
    #[arg(long, env = "PETSTORE_LISTEN", default_value = "127.0.0.1:8080", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// Listen for callers only when requests can be answered, instead of answering 503 while the log is replayed: for a
    /// balancer that goes to the next node when it cannot connect.
    #[arg(long, env = "PETSTORE_LISTEN_WHEN_READY")]
    pub(crate) listen_when_ready: bool,
    /// Address and port of a separate listener for probes, metrics and the log [default: none]
    #[arg(long, env = "PETSTORE_OPS_LISTEN", value_name = "ADDR", value_parser = address)]
    pub(crate) ops_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) store: StoreArgument,
    /// Refuse to start if the log promises less than this for an acknowledged commit.
    #[arg(long, env = "PETSTORE_REQUIRE_DURABILITY", default_value = "volatile", value_name = "LEVEL")]
    pub(crate) require_durability: RequiredDurability,
    /// Maximum number of pets. Further creates get 503; a log that holds more is still served [default: no limit]
    #[arg(long, env = "PETSTORE_MAX_PETS", value_name = "N", value_parser = whole_number::<usize>)]
    pub(crate) max_pets: Option<usize>,
    /// File with the API keys. If it does not exist, it is created with a first key.
    #[arg(long, env = "PETSTORE_KEYS", default_value = "petstore-data/keys.toml", value_name = "FILE")]
    pub(crate) keys: PathBuf,
    /// Directory of the record of the applied log: a log that does not hold the recorded commit is rejected. It must not be on
    /// the disk of the store. "none" runs without a record [default: the directory of the key file]
    #[arg(long, env = "PETSTORE_STATE", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Start even if the log is empty, older than the recorded one or a different one, and record it.
    #[arg(long, env = "PETSTORE_ACCEPT_NEW_LOG")]
    pub(crate) accept_new_log: bool,
    /// Allow plain HTTP on an address that other machines can reach. Use it only behind a proxy that terminates TLS.
    #[arg(long, env = "PETSTORE_INSECURE_HTTP")]
    pub(crate) insecure_http: bool,
    /// Allow plain HTTP on a reachable --ops-listen address, but not on --listen.
    #[arg(long, env = "PETSTORE_OPS_INSECURE_HTTP")]
    pub(crate) ops_insecure_http: bool,
    /// Serve HTTPS on both listeners, with this chain of certificates (PEM). A changed file is loaded within two seconds,
    /// or at once on SIGHUP.
    #[arg(long, env = "PETSTORE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert (PEM). Only the user that runs the service should be able to read it.
    #[arg(long, env = "PETSTORE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Maximum number of open connections. One more takes the place of an idle one without a valid key, or gets 503. The
    /// limit on open files may allow fewer.
    #[arg(long, env = "PETSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    #[command(flatten)]
    pub(crate) clients: ClientLimitArguments,
    /// How long to report "not ready" before the service stops accepting connections, e.g. 5s.
    #[arg(long, env = "PETSTORE_DRAIN_DELAY", default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub(crate) drain_delay: Duration,
    /// How long requests in flight may take to finish when the service stops.
    #[arg(long, env = "PETSTORE_DRAIN", default_value = "10s", value_name = "TIME", value_parser = duration)]
    pub(crate) drain: Duration,
    #[command(flatten)]
    pub(crate) addresses: AddressArguments,
    /// Origin of a web page that may call the service from a browser, e.g. `https://shop.example.com`. Repeat the flag or
    /// separate origins with commas; * allows every origin [default: none]
    #[arg(long, env = "PETSTORE_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origin: Vec<Origin>,
    /// What to log: off, error, warn, info, debug or trace, for the whole program or per module.
    #[arg(long, env = "PETSTORE_LOG", default_value = "info,async_nats=off", value_name = "FILTER",
          value_parser = log_filter)]
    pub(crate) log: String,
    /// Log every request instead of only those that are refused or fail.
    #[arg(long, env = "PETSTORE_ACCESS_LOG")]
    pub(crate) access_log: bool,
    /// Format of the log, which goes to standard error.
    #[arg(long, env = "PETSTORE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// Where the service can be reached from outside. Only the OpenAPI document and the page at /docs use this.
#[derive(Debug, Clone, Args)]
pub(crate) struct AddressArguments {
    /// Public URL of the production service for the OpenAPI document. It must end in /v1.
    #[arg(long, env = "PETSTORE_BASE_URL", value_name = "URL")]
    pub(crate) base_url: Option<ServerUrl>,
    /// Public URL of the staging service for the OpenAPI document. It must end in /v1.
    #[arg(long, env = "PETSTORE_STAGING_URL", value_name = "URL")]
    pub(crate) staging_url: Option<ServerUrl>,
    /// Whom to ask about the service: a web page or a mailto: URL for the OpenAPI document [default: none]
    #[arg(long, env = "PETSTORE_CONTACT", value_name = "URL")]
    pub(crate) contact: Option<ContactUrl>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgument {
    /// Where the log is stored: sled:PATH, sqlite:PATH, <postgres://USER@HOST/DATABASE>, <nats://HOST:PORT/STREAM>,
    /// or memory: (lost when the process ends). Pass passwords in the environment or a file instead of the URL.
    #[arg(
        long,
        env = "PETSTORE_STORE",
        hide_env_values = true,
        default_value = "sled:petstore-data/log",
        value_name = "URL"
    )]
    pub(crate) store: StoreUrl,
}

impl ServeArguments {
    pub(crate) fn store_options(&self) -> StoreOptions {
        StoreOptions {
            required: self.require_durability.into(),
            state: match &self.state {
                Some(state) if state.as_os_str() == "none" => None,
                Some(state) => Some(state.clone()),
                None => Some(self.keys.with_file_name("")),
            },
            accept_new_log: self.accept_new_log,
            pets_max: self.max_pets,
        }
    }

    pub(crate) fn access_log(&self) -> AccessLog {
        if self.access_log { AccessLog::All } else { AccessLog::Refused }
    }

    pub(crate) fn site(&self) -> Site {
        Site { origins: self.cors_origin.clone().into(), ..self.addresses.site() }
    }
}

impl AddressArguments {
    pub(crate) fn site(&self) -> Site {
        let Self { base_url, staging_url, contact } = self.clone();
        Site { base_url, staging_url, contact, ..Site::default() }
    }
}

/// The same levels as [`DurabilityLevel`], as words.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RequiredDurability {
    /// Nothing: a commit may be lost when the process ends.
    Volatile,
    /// Written, but possibly acknowledged before it is on disk.
    Buffered,
    /// On disk before it is acknowledged.
    Synced,
    /// On the disks of a majority of servers before it is acknowledged.
    Replicated,
}

impl From<RequiredDurability> for DurabilityLevel {
    fn from(required: RequiredDurability) -> Self {
        match required {
            RequiredDurability::Volatile => Self::Volatile,
            RequiredDurability::Buffered => Self::Buffered,
            RequiredDurability::Synced => Self::Synced,
            RequiredDurability::Replicated => Self::Replicated,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// A level for everything comes first, so that a misspelt one is not taken for the name of a module.
fn log_filter(text: &str) -> Result<String, String> {
    let level = text.split(',').next().unwrap_or_default();
    let known = ["off", "error", "warn", "info", "debug", "trace"].contains(&level);
    if known {
        Ok(text.to_owned())
    } else {
        Err("must begin with off, error, warn, info, debug or trace".into())
    }
}

/// A time with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "expected a number with a unit, for example 10s, 500ms or 1m 30s".into())
}

fn whole_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number, for example 1000".into())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let rule = "expected HOST:PORT, for example 127.0.0.1:8080";
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; {rule}"))?;
    addresses.next().ok_or_else(|| format!("the host has no address; {rule}"))
}
