//! Parses a `postgres://` URL and the environment into one configuration per server. Errors never show passwords.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use application::ports::{Fault, LogError};
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{error_mapping, passfile};
use crate::{event_log::Environment, loopback::is_loopback, root_certificates};

/// How long opening a session may take if the URL names one server, unless it has a `connect_timeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The same for each of several servers, because the primary may be the last one.
const CONNECT_TIMEOUT_AMONG_SEVERAL: Duration = Duration::from_secs(2);
const DEFAULT_PORT: u16 = 5432;

pub(super) struct Target {
    /// Host and port, for messages.
    pub(super) server: String,
    pub(super) config: Config,
    /// `None`: no encryption.
    pub(super) tls: Option<MakeRustlsConnect>,
    pub(super) connect_timeout: Duration,
}

/// Returns the servers of a URL, in its order. Each has its own configuration, so that an unresponsive server does not
/// use up the timeout of the others. Errors never repeat the URL, since it may hold a password.
pub(super) fn parse(url: &str, environment: Environment<'_>) -> Result<Vec<Target>, LogError> {
    let url = Url::split(url)?;
    let passwords = passfile::load(url.passfile.clone(), environment)?;
    url.servers.iter().map(|server| url.target(server, passwords.as_deref(), environment)).collect()
}

/// The user of a URL that names none.
fn user(environment: Environment<'_>) -> Option<String> {
    environment("PGUSER").or_else(|| environment("USER"))
}

/// The database and the schema that a URL selects, which name the log; never the server. Without a database, the user's
/// name selects it.
pub(super) fn log_name(url: &str, environment: Environment<'_>) -> String {
    let config =
        Url::split(url).ok().and_then(|url| url.servers[0].parse::<Config>().ok()).unwrap_or_default();
    // Without a database, the URL selects the one that is named after the user.
    let named = config.get_dbname().or(config.get_user()).map(str::to_owned);
    let database = named.or_else(|| user(environment)).unwrap_or_default();
    let path = config.get_options().and_then(|options| options.split_once("search_path="));
    let schema = path.and_then(|(_, path)| path.split_ascii_whitespace().next()).unwrap_or_default();
    format!("postgres:{database}/{schema}")
}

/// A URL, split into the parameters that this module handles and the rest.
#[derive(Default)]
struct Url {
    /// The URL of each server, without these parameters. At least one.
    servers: Vec<String>,
    sslmode: Option<String>,
    sslrootcert: Option<String>,
    passfile: Option<PathBuf>,
}

impl Url {
    fn split(url: &str) -> Result<Self, LogError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let Some((_, place)) =
            address.split_once("://").filter(|(scheme, _)| matches!(*scheme, "postgres" | "postgresql"))
        else {
            return Err(unusable("a PostgreSQL URL starts with postgres://".into()));
        };
        // The client library takes everything after the first `@` for hosts, so part of a password with an `@` would
        // appear in messages.
        if place.matches('@').count() > 1 || query.contains('@') {
            let rule = "percent-encode special characters in the user, password and options of a PostgreSQL URL (@ is \
                        %40, ? is %3F)";
            return Err(unusable(rule.into()));
        }
        let mut split = Self::default();
        let mut others = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "sslmode" => split.sslmode = Some(decoded(value)),
                "sslrootcert" => split.sslrootcert = Some(decoded(value)),
                "passfile" => split.passfile = Some(decoded(value).into()),
                _ => others.push(parameter),
            }
        }
        let (user, place) = place.split_at(place.find('@').map_or(0, |at| at + 1));
        let (hosts, database) = place.split_at(place.find('/').unwrap_or(place.len()));
        let options = others.join("&");
        let server = |host| format!("postgres://{user}{host}{database}?{options}");
        split.servers = hosts.split(',').map(server).collect();
        Ok(split)
    }

    fn target(
        &self,
        server: &str,
        passwords: Option<&str>,
        environment: Environment<'_>,
    ) -> Result<Target, LogError> {
        let mut config: Config = server.parse().map_err(|error: tokio_postgres::Error| {
            unusable(format!("the PostgreSQL URL cannot be used: {}", error_mapping::describe(&error)))
        })?;
        let ([host], []) = (config.get_hosts(), config.get_hostaddrs()) else {
            let rule = "a PostgreSQL URL names its servers before the database, as in postgres://USER@HOST[,HOST]/DATABASE";
            return Err(unusable(rule.into()));
        };
        let (name, tls) = match host {
            Host::Tcp(name) => (name.clone(), self.tls(name)?),
            Host::Unix(path) => (path.display().to_string(), None),
        };
        let port = config.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if config.get_user().is_none()
            && let Some(user) = user(environment)
        {
            config.user(user);
        }
        if config.get_password().is_none() {
            let user = config.get_user().unwrap_or_default();
            let database = config.get_dbname().unwrap_or(user);
            let of_file = || passfile::password(passwords?, [&name, &port.to_string(), database, user]);
            if let Some(password) = environment("PGPASSWORD").or_else(of_file) {
                config.password(password);
            }
        }
        if config.get_application_name().is_none() {
            config.application_name("petstore");
        }
        if !server.contains("target_session_attrs=") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let timeout = if self.servers.len() > 1 { CONNECT_TIMEOUT_AMONG_SEVERAL } else { CONNECT_TIMEOUT };
        let connect_timeout = config.get_connect_timeout().copied().unwrap_or(timeout);
        Ok(Target { server: format!("{name}:{port}"), config, tls, connect_timeout })
    }

    /// Creates the TLS connector for `host`, or returns `None` for no encryption. On a network, the default is
    /// `verify-full`. The modes that accept any certificate, or one for another host, are not supported: an attacker in
    /// between could impersonate the server.
    fn tls(&self, host: &str) -> Result<Option<MakeRustlsConnect>, LogError> {
        let is_encrypted = match self.sslmode.as_deref() {
            Some("disable") => false,
            Some("verify-full") => true,
            None => self.sslrootcert.is_some() || !is_loopback(host),
            Some(_) => {
                let rule = "the sslmode in a PostgreSQL URL must be verify-full, with sslrootcert=FILE for a private CA, \
                            or disable if the network is trusted";
                return Err(unusable(rule.into()));
            }
        };
        // Without a file, the certificates of the system are trusted.
        let roots = self.sslrootcert.as_deref().filter(|file| *file != "system").map(Path::new);
        let config = is_encrypted.then(|| root_certificates::client(roots)).transpose();
        let config = config.map_err(|why| unusable(format!("{why}; name a PEM file with sslrootcert")))?;
        Ok(config.map(MakeRustlsConnect::new))
    }
}

fn decoded(value: &str) -> String {
    percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned()
}

fn unusable(detail: String) -> LogError {
    Fault::CannotOpen.error(detail)
}

#[cfg(test)]
mod tests;
