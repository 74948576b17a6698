//! From a `postgres://` URL and the environment to one configuration per server. Passwords never leave it.

use std::{fmt, path::PathBuf, time::Duration};

use application::ports::{Fault, LogError};
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    passfile,
    tls::{self, Roots, Trust},
};

/// How long one server may take to give a session, unless the URL has a `connect_timeout`.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same when there are others to ask.
const PATIENCE_AMONG_SEVERAL: Duration = Duration::from_secs(2);
const DEFAULT_PORT: u16 = 5432;

/// Looks up an environment variable.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where the log may be, in the order of the URL.
#[derive(Debug)]
pub(super) struct Settings {
    targets: Vec<Target>,
}

/// One server.
pub(super) struct Target {
    /// Host and port, for sentences.
    pub(super) server: String,
    pub(super) config: Config,
    /// `None`: in clear.
    pub(super) tls: Option<MakeRustlsConnect>,
    pub(super) patience: Duration,
}

impl Settings {
    /// Reads the URL. An error never shows it, since it may hold a password.
    pub(super) fn parse(url: &str, environment: Environment<'_>) -> Result<Self, LogError> {
        let url = Url::split(url)?;
        let mut config: Config = url.rest.parse().map_err(|error: tokio_postgres::Error| {
            unusable(format!("the PostgreSQL URL cannot be used: {}", super::error_mapping::describe(&error)))
        })?;
        if config.get_user().is_none()
            && let Some(user) = environment("PGUSER").or_else(|| environment("USER"))
        {
            config.user(user);
        }
        if config.get_password().is_none()
            && let Some(password) = environment("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("petstore");
        }
        if !url.rest.contains("target_session_attrs=") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let (mode, trust) = url.tls()?;
        config.ssl_mode(mode);
        let tls = trust.map(|trust| tls::connector(trust, &url.roots())).transpose()?;
        let passwords = passfile::choose(url.passfile.clone(), environment)?;
        let targets = separate(&config, tls.as_ref(), passwords.as_ref())?;
        Ok(Self { targets })
    }

    pub(super) fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// All servers, for sentences.
    pub(super) fn servers(&self) -> String {
        let servers: Vec<_> = self.targets.iter().map(|target| target.server.as_str()).collect();
        servers.join(", ")
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Target").field("server", &self.server).finish_non_exhaustive()
    }
}

/// A URL, with the parameters taken out that are for us.
#[derive(Default)]
struct Url {
    rest: String,
    sslmode: Option<String>,
    sslrootcert: Option<String>,
    passfile: Option<PathBuf>,
}

impl Url {
    fn split(url: &str) -> Result<Self, LogError> {
        let Some((_, body)) =
            url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "postgres" | "postgresql"))
        else {
            return Err(unusable("a PostgreSQL URL starts with postgres://".into()));
        };
        let authority = body.split('/').next().unwrap_or_default();
        if authority.split_once('?').is_some_and(|(_, query)| query.contains('@')) {
            let rule = "special characters in the user or password of a PostgreSQL URL are percent-encoded (? is %3F)";
            return Err(unusable(rule.into()));
        }
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
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
        split.rest = format!("{address}?{}", others.join("&"));
        Ok(split)
    }

    /// Whether to encrypt, and whom to trust then. The names and meanings are those of PostgreSQL's own clients.
    fn tls(&self) -> Result<(SslMode, Option<Trust>), LogError> {
        match self.sslmode.as_deref() {
            Some("disable") => Ok((SslMode::Disable, None)),
            None | Some("prefer") => Ok((SslMode::Prefer, Some(Trust::Anybody))),
            Some("require") if self.sslrootcert.is_none() => Ok((SslMode::Require, Some(Trust::Anybody))),
            Some("require" | "verify-ca") => Ok((SslMode::Require, Some(Trust::AnyNameOfTheRoots))),
            Some("verify-full") => Ok((SslMode::Require, Some(Trust::TheNameOnly))),
            Some(_) => Err(unusable(
                "sslmode must be disable, prefer, require, verify-ca or verify-full in a PostgreSQL URL"
                    .into(),
            )),
        }
    }

    fn roots(&self) -> Roots {
        match self.sslrootcert.as_deref() {
            None | Some("system") => Roots::OfTheSystem,
            Some(path) => Roots::In(path.into()),
        }
    }
}

/// One configuration per server, so that a silent server cannot use up the time of the others.
fn separate(
    all: &Config,
    tls: Option<&MakeRustlsConnect>,
    passwords: Option<&passfile::Passwords>,
) -> Result<Vec<Target>, LogError> {
    let hosts = all.get_hosts();
    if hosts.is_empty() {
        return Err(unusable("the PostgreSQL URL names no host".into()));
    }
    if !all.get_hostaddrs().is_empty() {
        return Err(unusable("hostaddr is not supported in a PostgreSQL URL: name the hosts".into()));
    }
    let ports = all.get_ports();
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(unusable("the PostgreSQL URL must name one port, or one for each host".into()));
    }
    let patience = if hosts.len() > 1 { PATIENCE_AMONG_SEVERAL } else { PATIENCE };
    let targets = hosts.iter().enumerate().map(|(nth, host)| {
        let port = ports.get(nth).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
        let mut config = without_hosts(all);
        config.port(port);
        let (name, tls) = match host {
            Host::Tcp(name) => {
                config.host(name);
                (name.clone(), tls.cloned())
            }
            Host::Unix(path) => {
                config.host_path(path);
                (path.display().to_string(), None)
            }
        };
        let user = config.get_user().unwrap_or_default().to_owned();
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        if config.get_password().is_none()
            && let Some(password) = passwords.and_then(|file| file.find(&name, port, &database, &user))
        {
            config.password(password);
        }
        let patience = all.get_connect_timeout().copied().unwrap_or(patience);
        Target { server: format!("{name}:{port}"), config, tls, patience }
    });
    Ok(targets.collect())
}

fn without_hosts(all: &Config) -> Config {
    let mut one = Config::new();
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .target_session_attrs(all.get_target_session_attrs())
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle());
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_tcp_user_timeout().map(|timeout| one.tcp_user_timeout(*timeout));
    all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one
}

fn decoded(value: &str) -> String {
    // In these URLs a plus is a plus, unlike in a form.
    let value = value.replace('+', "%2B");
    form_urlencoded::parse(value.as_bytes()).map(|(value, _)| value.into_owned()).collect()
}

fn unusable(detail: String) -> LogError {
    LogError::new(Fault::CannotOpen, detail)
}

#[cfg(test)]
mod tests;
