//! The arguments of the program. Every flag has an environment variable of the same name.

use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    time::Duration,
};

use adapters::http::{Origin, ServerUrl, Site};
use application::ports::DurabilityLevel;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{commands::keys::KeysCommand, store_url::StoreUrl};

/// A durable pet-store inventory service: three HTTP operations on an append-only log.
#[derive(Debug, Parser)]
#[command(name = "petstore", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the service until it is told to stop (SIGTERM or Ctrl-C).
    Serve(ServeArguments),
    /// Issue, list and revoke API keys. A running service takes note within two seconds.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Check, export and move a log. A log on this machine's disk must not be in use.
    #[command(subcommand)]
    Log(LogCommand),
    /// Print the interface as an OpenAPI 3.1 document, as the service shows it at /openapi.json.
    Openapi(AddressArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Address and port to listen on. Port 0 picks a free one.
    #[arg(long, env = "PETSTORE_LISTEN", default_value = "127.0.0.1:8080", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// Address and port for probes and metrics, for those who run the service [default: none]
    #[arg(long, env = "PETSTORE_OPS_LISTEN", value_name = "ADDR", value_parser = address)]
    pub(crate) ops_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) store: StoreArgument,
    /// Refuse to start when the log promises less about an acknowledged commit.
    #[arg(long, env = "PETSTORE_REQUIRE_DURABILITY", default_value = "volatile", value_name = "LEVEL")]
    pub(crate) require_durability: RequiredDurability,
    /// File with the API keys. If it does not exist, it is made, with a first key.
    #[arg(long, env = "PETSTORE_KEYS", default_value = "petstore-data/keys.toml", value_name = "FILE")]
    pub(crate) keys: PathBuf,
    /// Serve plain HTTP on an address that other machines reach. Only when something in front does TLS.
    #[arg(long, env = "PETSTORE_INSECURE_HTTP")]
    pub(crate) insecure_http: bool,
    /// The most connections at a time; more are told to come back.
    #[arg(long, env = "PETSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    /// How long to report "not ready" before the service stops accepting, e.g. 5s.
    #[arg(long, env = "PETSTORE_DRAIN_DELAY", default_value = "0s", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) drain_delay: Duration,
    /// How long requests in flight may take to finish when the service stops.
    #[arg(long, env = "PETSTORE_DRAIN", default_value = "10s", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
    #[command(flatten)]
    pub(crate) addresses: AddressArguments,
    /// Origins of web pages that may call the service from a browser, e.g. `https://shop.example.com`; repeat it or
    /// separate with commas; * is every page [default: none]
    #[arg(long, env = "PETSTORE_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origin: Vec<Origin>,
    /// What to log: off, error, warn, info, debug or trace, for everything or by module.
    #[arg(long, env = "PETSTORE_LOG", default_value = "info,async_nats=warn", value_name = "FILTER",
          value_parser = log_filter)]
    pub(crate) log: String,
    /// How to log, on standard error.
    #[arg(long, env = "PETSTORE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// Where the service can be reached from outside. Only the OpenAPI document and the page at /docs tell it.
#[derive(Debug, Clone, Args)]
pub(crate) struct AddressArguments {
    /// Public address of the production service, ending in /v1, for the OpenAPI document.
    #[arg(long, env = "PETSTORE_BASE_URL", value_name = "URL")]
    pub(crate) base_url: Option<ServerUrl>,
    /// Public address of the staging service, ending in /v1, for the OpenAPI document.
    #[arg(long, env = "PETSTORE_STAGING_URL", value_name = "URL")]
    pub(crate) staging_url: Option<ServerUrl>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgument {
    /// Where the log is kept: sled:PATH, sqlite:PATH, <postgres://USER@HOST/DATABASE>, <nats://HOST:PORT/STREAM>,
    /// or memory: (which forgets everything at the end). Passwords are better given in the environment.
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
    pub(crate) fn site(&self) -> Site {
        Site { origins: self.cors_origin.iter().cloned().collect(), ..self.addresses.site() }
    }
}

impl AddressArguments {
    pub(crate) fn site(&self) -> Site {
        let Self { base_url, staging_url } = self.clone();
        Site { base_url, staging_url, ..Site::default() }
    }
}

/// The same levels as [`DurabilityLevel`], as words.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RequiredDurability {
    /// Anything goes.
    Volatile,
    /// Written, though perhaps acknowledged before it is on disk.
    Buffered,
    /// On disk before it is acknowledged.
    Synced,
    /// On the disks of a majority of machines before it is acknowledged.
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
    /// Lines to read.
    Text,
    /// One JSON object per line.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Tell how large the log is, how old, and what its engine promises.
    Stat(StoreArgument),
    /// Read everything and check it: checksums, positions, contradictions, the high-water mark. Prints a
    /// digest, or the first bad position and what can be saved.
    Verify(StoreArgument),
    /// Write every commit as one line of JSON to standard output, and a manifest as the last line.
    Export(StoreArgument),
    /// Put an exported history into an empty log, or go on where an earlier import stopped.
    Import {
        /// The exported file; - reads standard input.
        #[arg(default_value = "-")]
        file: PathBuf,
        #[command(flatten)]
        target: StoreArgument,
    },
    /// Copy a history into another engine, byte for byte, or go on where an earlier copy stopped.
    Copy {
        /// The log to copy.
        #[arg(long, env = "PETSTORE_FROM", hide_env_values = true, value_name = "URL")]
        from: StoreUrl,
        /// The log to fill: empty, or the beginning of the same history.
        #[arg(long, env = "PETSTORE_TO", hide_env_values = true, value_name = "URL")]
        to: StoreUrl,
    },
    /// Copy what is sound of a damaged log into a new one, and tell what could not be read. Changes nothing in
    /// the damaged one.
    Salvage {
        /// The damaged log.
        #[arg(long, env = "PETSTORE_FROM", hide_env_values = true, value_name = "URL")]
        from: StoreUrl,
        /// The log to fill: a new one, or one that an earlier try has begun to fill.
        #[arg(long, env = "PETSTORE_TO", hide_env_values = true, value_name = "URL")]
        to: StoreUrl,
    },
    /// Print the last commits as lines of JSON, then those that are made, until stopped. With an embedded engine, which
    /// one process holds at a time, it ends after the last commit.
    Tail {
        /// Begin after this position instead of ten commits before the end.
        #[arg(long, env = "PETSTORE_AFTER", value_name = "POSITION")]
        after: Option<u64>,
        #[command(flatten)]
        source: StoreArgument,
    },
}

/// A level for everything comes first, so that a misspelt one is not taken for the name of a module.
fn log_filter(text: &str) -> Result<String, String> {
    let level = text.split(',').next().unwrap_or_default();
    let known = ["off", "error", "warn", "info", "debug", "trace"].contains(&level);
    if known { Ok(text.to_owned()) } else { Err("begin with off, error, warn, info, debug or trace".into()) }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let rule = "write HOST:PORT, for example 127.0.0.1:8080";
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; {rule}"))?;
    addresses.next().ok_or_else(|| format!("the host has no address; {rule}"))
}
