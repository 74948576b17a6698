//! The command line. Every flag of `serve` has an environment variable of the same name. Other commands have variables
//! only for connection settings, because a forgotten variable would change what a single command does.

mod keys;
mod log;

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    ffi::OsString,
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    process,
    str::FromStr,
    sync::LazyLock,
    time::Duration,
};

use adapters::{
    access::{
        RateLimit,
        api_keys::{ApiKey, KEY_FILE_VERSION},
    },
    http::{API_VERSION, ContactUrl, HttpSettings, Origin, ServerUrl, TrustedProxy},
    service_client::ServiceUrl,
};
use anyhow::bail;
use application::{log::codec, ports::DurabilityLevel};
use clap::{
    Arg, Args, CommandFactory as _, Parser, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
    value_parser,
};
use clap_complete::Shell;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};

use crate::{
    engines::{Backend, DEFAULT_STORE},
    store_url::StoreUrl,
};

pub(crate) use keys::KeysCommand;
pub(crate) use log::{AccessArguments, FindArguments, LogCommand, SourceArgument};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The variable of an API key. There is no flag, because other users can see arguments.
const API_KEY_VARIABLE: &str = "PETSTORE_API_KEY";
/// How to pass the certificate of a private CA to commands that connect to a service.
pub(crate) const CA_OPTION: &str = "--ca FILE";
const DEFAULT_KEYS: &str = "petstore-data/keys.toml";
/// The longest duration that a flag accepts.
const DURATION_MAX: Duration = Duration::from_hours(24);

/// The version of the binary, and those of the formats that `docs/versioning.md` covers.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let format = codec::FORMAT;
    format!("{VERSION}\nAPI {API_VERSION}\nrecord format {format}\nkey file {KEY_FILE_VERSION}")
});

/// Parses the arguments; prints an error and exits if they are wrong. For `serve`, `keys` and `log`, a `PETSTORE_`
/// variable that no command reads is an error too: with a misspelt one, a setting would silently keep its default.
pub(crate) fn parse() -> Command {
    check_for_keys();
    let command = Command::try_parse().unwrap_or_else(|error| without_value(error).exit());
    if matches!(command, Command::Serve(_) | Command::Keys { .. } | Command::Log(_)) {
        let known: BTreeSet<OsString> =
            variables(&Command::command()).chain([API_KEY_VARIABLE.into()]).collect();
        let ours = env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| name.as_encoded_bytes().starts_with(b"PETSTORE_"));
        if let Some(unknown) = ours.filter(|name| !known.contains(name)).min() {
            let unknown = unknown.to_string_lossy();
            let error = format!(
                "unknown environment variable {unknown:?}: correct its name or unset it; the --help of a command lists them"
            );
            Command::command().error(ErrorKind::UnknownArgument, error).exit();
        }
    }
    command
}

/// Rejects API keys in arguments: other users can see them, and messages would repeat them. `keys` accepts one instead of its
/// id.
fn check_for_keys() {
    let mut arguments = env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    if arguments.next().is_some_and(|command| command != "keys") && arguments.any(|text| ApiKey::is_in(&text))
    {
        let error = "an argument contains an API key, which other users can see: rotate the key, and pass the new one with \
                     --api-key-file FILE or in PETSTORE_API_KEY";
        Command::command().error(ErrorKind::ValueValidation, error).exit();
    }
}

/// Removes a value that may hold a secret from an error: a wrong URL, or a URL or key without its flag. A word of letters is
/// shown, because it may be a misspelt command.
fn without_value(mut error: clap::Error) -> clap::Error {
    let place = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, _) => ContextKind::InvalidArg,
        (ErrorKind::InvalidSubcommand, _) => ContextKind::InvalidSubcommand,
        (ErrorKind::ValueValidation, Some(ContextValue::String(argument))) if argument.contains("URL") => {
            error.insert(ContextKind::InvalidValue, ContextValue::String("…".into()));
            return error;
        }
        _ => return error,
    };
    if let Some(ContextValue::String(value)) = error.get(place)
        && !value.starts_with('-')
        && !value.bytes().all(|byte| byte.is_ascii_alphabetic())
    {
        error.insert(place, ContextValue::String("…".into()));
        let tip =
            "the value is not shown, because it may be a secret; write a value after its flag (see --help)";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The variables of a command and its subcommands.
fn variables(command: &clap::Command) -> Box<dyn Iterator<Item = OsString> + '_> {
    let own = command.get_arguments().filter_map(|argument| argument.get_env().map(Into::into));
    Box::new(own.chain(command.get_subcommands().flat_map(variables)))
}

/// Gives a flag its environment variable.
fn with_variable(argument: Arg) -> Arg {
    let flag = argument.get_long().expect("serve has only flags").replace('-', "_");
    argument.env(format!("PETSTORE_{}", flag.to_uppercase()))
}

/// An inventory service for a pet store, on a durable append-only log.
#[derive(Debug, Parser)]
#[command(name = "petstore", version, long_version = LONG_VERSION.as_str(), propagate_version = true, max_term_width = 100)]
pub(crate) enum Command {
    /// Run the service until it receives SIGTERM or Ctrl-C.
    Serve(Box<ServeArguments>),
    /// Issue, list, rotate and revoke API keys. A running service picks up changes within two seconds.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
        /// The key file.
        #[arg(long, global = true, env = "PETSTORE_KEYS", default_value = DEFAULT_KEYS, value_name = "FILE")]
        keys: PathBuf,
    },
    /// Inspect, verify, search, export, import, copy, salvage and accept a log. While a service uses a log in
    /// files, pass the URL of its admin listener instead of the store.
    #[command(subcommand)]
    Log(LogCommand),
    /// Print the OpenAPI 3.1 document that the service serves at /openapi.json.
    Openapi(AddressArguments),
    /// Check whether a running service is ready or alive.
    ///
    /// Prints the report of the service. Exit status: 0 healthy, 1 unhealthy, 3 no valid response.
    Health(HealthArguments),
    /// Print a completion script for a shell.
    Completions {
        /// The shell to complete commands in.
        shell: Shell,
    },
    /// Print the manual page.
    Man {
        /// Write petstore.1 and one page for each subcommand into this directory instead of printing petstore.1.
        #[arg(long, value_name = "DIRECTORY")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
#[command(mut_args(with_variable))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ServeArguments {
    /// Address and port to listen on. Port 0 picks a free port.
    #[arg(long, help_heading = "Listening", default_value = "127.0.0.1:8080", value_name = "ADDR", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// Start listening only when the log has been replayed, instead of responding with 503 until then. For load
    /// balancers that try the next node when they cannot connect.
    #[arg(long, help_heading = "Listening")]
    pub(crate) listen_when_ready: bool,
    /// Address and port of the admin listener, for probes, metrics and the log [default: none]
    #[arg(long, help_heading = "Listening", value_name = "ADDR", value_parser = address)]
    pub(crate) admin_listen: Option<SocketAddr>,
    #[arg(long, help_heading = "Storage", help = format!("Where the log is stored: {}", Backend::url_forms()),
          hide_env_values = true, default_value = DEFAULT_STORE, value_name = "URL")]
    pub(crate) store: StoreUrl,
    /// Minimum durability of an acknowledged commit; a log that promises less is rejected.
    #[arg(long, help_heading = "Storage", default_value = "volatile", value_name = "LEVEL",
          value_parser = one_of::<DurabilityLevel>(DURABILITY_LEVELS))]
    pub(crate) require_durability: DurabilityLevel,
    /// Maximum number of pets. Further creates get 503; a log that holds more is still served [default: no limit]
    #[arg(long, help_heading = "Limits", value_name = "N")]
    pub(crate) max_pets: Option<usize>,
    /// File with the API keys. If it does not exist and the log is empty, it is created with a first key.
    #[arg(long, help_heading = "Keys", default_value = DEFAULT_KEYS, value_name = "FILE")]
    pub(crate) keys: PathBuf,
    /// Directory of the state file, which records the id and position of the last applied commit. A log without that
    /// commit is rejected. Choose a different disk than that of the store. "none" runs without a state file [default: the
    /// directory of the key file]
    #[arg(long, help_heading = "Storage", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Allow plain HTTP on an address that other machines can reach. Use it only behind a proxy that terminates TLS.
    #[arg(long, help_heading = "TLS")]
    pub(crate) insecure_http: bool,
    /// Like --insecure-http, but only for --admin-listen.
    #[arg(long, help_heading = "TLS")]
    pub(crate) admin_insecure_http: bool,
    /// Serve HTTPS on both listeners, with this certificate chain (PEM). A changed file is loaded within two seconds,
    /// or at once on SIGHUP.
    #[arg(long, help_heading = "TLS", value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert (PEM). Only the user that runs the service should be able to read it.
    #[arg(long, help_heading = "TLS", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Maximum number of open connections. At the limit, a new connection closes 1/64 of them, those of the client that
    /// holds most. A lower limit on open files (ulimit -n) takes precedence.
    #[arg(long, help_heading = "Limits", default_value_t = 10_000, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    /// Maximum number of open connections per client address; a further one closes another. An IPv6 client is its /64
    /// network. Does not apply to trusted proxies [default: no limit]
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) connections_per_address: Option<u32>,
    /// Maximum request rate of each API key, for example 100/s, 1000/m or 5000/h; requests over the limit get 429. A
    /// limit that was issued with a key takes precedence [default: no limit]
    #[arg(long, help_heading = "Limits", value_name = "LIMIT")]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Maximum rate of wrong API keys per client address, for example 10/m; requests over the limit get 429 instead of
    /// 401. Valid keys from the same address are not affected [default: no limit]
    #[arg(long, help_heading = "Limits", value_name = "LIMIT")]
    pub(crate) failed_auth_limit: Option<RateLimit>,
    /// Address or range of a trusted proxy, for example 10.0.0.0/8. The address of its client is taken from
    /// X-Forwarded-For. Repeat the flag or separate ranges with commas [default: none]
    #[arg(long, help_heading = "Limits", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) trusted_proxy: Vec<TrustedProxy>,
    /// How long to report "not ready" before the listener is closed, for example 5s.
    #[arg(long, help_heading = "Shutdown", default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub(crate) drain_delay: Duration,
    /// How long requests in flight may take to finish at shutdown.
    #[arg(long, help_heading = "Shutdown", default_value = "10s", value_name = "TIME", value_parser = duration)]
    pub(crate) drain: Duration,
    #[command(flatten, next_help_heading = "OpenAPI document")]
    pub(crate) addresses: AddressArguments,
    /// Origin of web pages that may call the API from a browser, for example `https://shop.example.com`. Repeat the
    /// flag or separate origins with commas; * allows every origin [default: none]
    #[arg(long, help_heading = "Listening", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origin: Vec<Origin>,
    /// Level of the service log (off, error, warn, info, debug, trace), levels for parts of the service, or both, for
    /// example `info,petstore::http=debug`. Without a level for all, the other parts log nothing. Parts: `petstore::{http,
    /// keys, log, service, storage}`.
    #[arg(long, help_heading = "Service log", default_value = "info,async_nats=off", value_name = "LEVEL",
          value_parser = log_level)]
    pub(crate) log_level: Targets,
    /// Log every request, not only rejected and failed ones.
    #[arg(long, help_heading = "Service log")]
    pub(crate) access_log: bool,
    /// Format of the service log, which goes to standard error.
    #[arg(long, help_heading = "Service log", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// The public addresses of the service, for the OpenAPI document and the page at /docs.
#[derive(Debug, Clone, Args)]
pub(crate) struct AddressArguments {
    /// Public URL of the production service in the OpenAPI document. It must end in /v1.
    #[arg(long, env = "PETSTORE_BASE_URL", value_name = "URL")]
    pub(crate) base_url: Option<ServerUrl>,
    /// Public URL of the staging service in the OpenAPI document. It must end in /v1.
    #[arg(long, env = "PETSTORE_STAGING_URL", value_name = "URL")]
    pub(crate) staging_url: Option<ServerUrl>,
    /// Contact in the OpenAPI document: a web page or a mailto: URL [default: none]
    #[arg(long, env = "PETSTORE_CONTACT", value_name = "URL")]
    pub(crate) contact: Option<ContactUrl>,
}

impl ServeArguments {
    /// The directory of the state file, or `None` to run without one.
    pub(crate) fn state_directory(&self) -> Option<PathBuf> {
        match &self.state {
            Some(state) if state.as_os_str() == "none" => None,
            Some(state) => Some(state.clone()),
            None => {
                let directory = self.keys.parent().filter(|directory| !directory.as_os_str().is_empty());
                Some(directory.unwrap_or(Path::new(".")).to_path_buf())
            }
        }
    }

    pub(crate) fn http_settings(&self) -> HttpSettings {
        HttpSettings {
            origins: self.cors_origin.clone().into(),
            trusted_proxies: self.trusted_proxy.clone(),
            failed_auth_limit: self.failed_auth_limit,
            access_log: self.access_log,
            ..self.addresses.http_settings()
        }
    }

    /// Checks the addresses of the listeners before anything is opened.
    pub(crate) fn check_listeners(&self) -> anyhow::Result<()> {
        let listen = self.listen;
        // The system would report the address as taken by another process.
        if let Some(admin) = self.admin_listen
            && listen.port() == admin.port()
            && listen.port() != 0
            && (listen.ip() == admin.ip() || listen.ip().is_unspecified() || admin.ip().is_unspecified())
        {
            bail!(
                "--listen {listen} and --admin-listen {admin} are the same address: choose another port for \
                 --admin-listen"
            );
        }
        // On a network, plain HTTP would expose API keys.
        let listeners = [
            (Some(listen), "--insecure-http"),
            (self.admin_listen.filter(|_| !self.admin_insecure_http), "--admin-insecure-http"),
        ];
        for (address, flag) in listeners {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback())
                && self.tls_cert.is_none()
                && !self.insecure_http
            {
                bail!(
                    "{address} is reachable from other machines, and plain HTTP exposes API keys to the network: listen on \
                     127.0.0.1, give a certificate with --tls-cert and --tls-key, or pass {flag} if a proxy in front \
                     terminates TLS"
                )
            }
        }
        Ok(())
    }

    /// Logs the configuration. A store URL shows no password.
    pub(crate) fn log(&self) {
        let limit = |limit: Option<RateLimit>| limit.map(|limit| limit.to_string());
        tracing::info!(
            target: "petstore::service",
            version = VERSION,
            pid = process::id(),
            listen = %self.listen,
            admin_listen = self.admin_listen.map(tracing::field::display),
            store = %self.store,
            require_durability = self.require_durability.name(),
            keys = %self.keys.display(),
            tls_cert = self.tls_cert.as_ref().map(|path| tracing::field::display(path.display())),
            max_connections = self.max_connections,
            max_pets = self.max_pets,
            rate_limit = limit(self.rate_limit),
            failed_auth_limit = limit(self.failed_auth_limit),
            connections_per_address = self.connections_per_address,
            trusted_proxies = self.trusted_proxy.len(),
            cors_origins = self.cors_origin.len(),
            access_log = self.access_log,
            listen_when_ready = self.listen_when_ready,
            drain_seconds = self.drain.as_secs(),
            "starting"
        );
    }
}

impl AddressArguments {
    pub(crate) fn http_settings(&self) -> HttpSettings {
        let Self { base_url, staging_url, contact } = self.clone();
        HttpSettings { base_url, staging_url, contact, ..HttpSettings::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// URL of the service: `http://HOST:PORT` or `https://HOST:PORT`. Both listeners serve the probes.
    #[arg(env = "PETSTORE_URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: ServiceUrl,
    /// Which probe to request.
    #[arg(long, default_value = "ready")]
    pub(crate) probe: Probe,
    /// File with the certificates (PEM) to trust for https [default: those of the system]
    #[arg(long, env = "PETSTORE_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// How long to wait for the whole response.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Print the report as JSON on a terminal too.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Probe {
    /// Whether the service should get requests (/readyz).
    Ready,
    /// Whether the service should get reads (/readyz/reads).
    Reads,
    /// Whether the service should get writes (/readyz/writes).
    Writes,
    /// Whether the process is alive (/livez).
    Live,
}

const DURABILITY_LEVELS: [(&str, &str); 4] = [
    ("volatile", "A commit may be lost when the process ends"),
    ("buffered", "Possibly acknowledged before it is on disk"),
    ("synced", "On disk before it is acknowledged"),
    ("replicated", "On the disks of a majority of servers before it is acknowledged"),
];

/// Parses one of these names. Each has its help.
fn one_of<T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static>(
    names: [(&'static str, &'static str); 4],
) -> impl TypedValueParser<Value = T> {
    let names = names.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Parses a list of `LEVEL` and `TARGET=LEVEL`. `Targets` alone would take a misspelt level for the name of a target.
fn log_level(text: &str) -> Result<Targets, String> {
    let has_level = |rule: &str| {
        let level = rule.split_once('=').map_or(rule, |(_, level)| level);
        !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    match text.split(',').find(|rule| !has_level(rule)) {
        Some(wrong) => Err(format!(
            "{wrong:?} is neither a level (off, error, warn, info, debug, trace) nor PART=LEVEL; for example \
             info,petstore::http=debug"
        )),
        None => text.parse().map_err(|error: ParseError| error.to_string()),
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    let time = humantime::parse_duration(text).ok().filter(|time| *time <= DURATION_MAX);
    time.ok_or("expected a number with a unit, for example 10s, 500ms or 1m 30s, up to 1d")
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs();
    let found = found.map_err(|error| format!("{error}; expected HOST:PORT, for example 127.0.0.1:8080"))?;
    found.into_iter().next().ok_or_else(|| "the host has no address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_level_is_a_list_of_levels_with_and_without_a_target() {
        for filter in ["info", "off", "info,petstore::http=debug", "petstore::http=debug,petstore::keys=off"]
        {
            log_level(filter).unwrap();
        }
        let wrong = "inof info,petstore petstore::http=loud petstore::http= info, a=b=info";
        for filter in wrong.split(' ').chain([""]) {
            let error = log_level(filter).unwrap_err();
            assert!(error.contains("is neither a level (off, error, warn, info, debug, trace)"), "{error}");
        }
    }
}
