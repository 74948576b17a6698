//! Store URLs: which engine stores the log, and where.

use std::{ffi::OsStr, fmt, path::PathBuf, str::FromStr};

use adapters::service_client::ServiceUrl;
use application::Sharing;
use clap::{
    builder::{TypedValueParser, ValueParserFactory},
    error::ErrorKind,
};

/// A parsed store URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Sled(PathBuf),
    Sqlite(PathBuf),
    Postgres(String),
    Nats(String),
    Memory,
    /// A running service, whose log can be read.
    Service(ServiceUrl),
}

impl StoreUrl {
    /// Whether other nodes may write to the same log.
    pub(crate) fn sharing(&self) -> Sharing {
        match self {
            Self::Sled(_) | Self::Sqlite(_) | Self::Memory => Sharing::Alone,
            Self::Postgres(_) | Self::Nats(_) | Self::Service(_) => Sharing::Shared,
        }
    }
}

impl StoreUrl {
    /// Whether both are the same log, as far as it can be known without asking a server.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        match (self, other) {
            (Self::Sled(one), Self::Sled(other)) | (Self::Sqlite(one), Self::Sqlite(other)) => {
                real(one) == real(other)
            }
            (Self::Memory, Self::Memory) => false,
            (one, other) => one == other,
        }
    }
}

impl StoreUrl {
    /// A name for the log on a server, by which it is recognised after a restart: everything in the URL that decides which
    /// log it is, and no password.
    pub(crate) fn name_of_server_log(&self) -> Option<String> {
        match self {
            Self::Sled(_) | Self::Sqlite(_) | Self::Memory | Self::Service(_) => None,
            Self::Nats(url) => Some(redacted(url)),
            Self::Postgres(url) => {
                let (_, rest) = url.split_once("://").unwrap_or(("", url));
                let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
                let (user, place) = place.rsplit_once('@').unwrap_or(("", place));
                let user = user.split(':').next().unwrap_or_default();
                let deciding = ["options", "user", "dbname", "host", "hostaddr", "port"];
                let decides =
                    |option: &&str| option.split_once('=').is_some_and(|(name, _)| deciding.contains(&name));
                let options: Vec<_> = options.split('&').filter(decides).collect();
                Some(format!("postgres://{user}@{place}?{}", options.join("&")))
            }
        }
    }
}

impl ValueParserFactory for StoreUrl {
    type Parser = StoreUrlParser;

    fn value_parser() -> StoreUrlParser {
        StoreUrlParser
    }
}

/// Parses a store URL from the command line. Unlike clap's own parser, it never repeats the value in an error message,
/// because it may contain a password.
#[derive(Debug, Clone)]
pub(crate) struct StoreUrlParser;

impl TypedValueParser for StoreUrlParser {
    type Value = StoreUrl;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<StoreUrl, clap::Error> {
        let parsed = value.to_str().ok_or_else(|| "it is not UTF-8".to_owned()).and_then(str::parse);
        parsed.map_err(|reason: String| {
            let flag = argument.map(clap::Arg::to_string).unwrap_or_default();
            let words = format!("invalid value for '{flag}': {reason}\n");
            clap::Error::raw(ErrorKind::ValueValidation, words).with_cmd(command)
        })
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let url_of = |rest: &str| rest.strip_prefix("//").is_some_and(|host| !host.is_empty());
        let names_a_stream = |rest: &str| {
            let place = rest.split('?').next().unwrap_or_default();
            place[2..].split_once('/').is_some_and(|(_, stream)| !stream.is_empty())
        };
        match url.split_once(':') {
            Some(("sled", path)) if !path.is_empty() => Ok(Self::Sled(path.into())),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            Some(("postgres" | "postgresql", rest)) if url_of(rest) => Ok(Self::Postgres(url.into())),
            Some(("nats", rest)) if url_of(rest) && names_a_stream(rest) => Ok(Self::Nats(url.into())),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("http" | "https", _)) => url.parse().map(Self::Service).map_err(str::to_owned),
            Some(_) | None => Err("expected sled:PATH, sqlite:PATH, postgres://USER@HOST/DATABASE, \
                                   nats://HOST:PORT/STREAM, memory:, or for a running service https://HOST:PORT"
                .into()),
        }
    }
}

/// The URL without anything that may be a secret.
impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sled(path) => write!(formatter, "sled:{}", path.display()),
            Self::Sqlite(path) => write!(formatter, "sqlite:{}", path.display()),
            Self::Postgres(url) | Self::Nats(url) => formatter.write_str(&redacted(url)),
            Self::Memory => formatter.write_str("memory:"),
            Self::Service(url) => url.fmt(formatter),
        }
    }
}

/// clap may print the arguments of a wrong command line.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The URL without user, password and options. A raw password may hold any character: an `@` after a `?` or `#` can
/// be part of it or of an option, so nothing but the scheme is certain not to be a secret.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (place, options) = rest.split_once(['?', '#']).unwrap_or((rest, ""));
    if options.contains('@') {
        return format!("{scheme}://…");
    }
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    format!("{scheme}://{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_scheme() {
        for url in [
            "sled:a/b",
            "sqlite:/x.db",
            "memory:",
            "postgres://h/db",
            "nats://h:4222,i:4222/PETS",
            "https://h:9080",
        ] {
            assert_eq!(url.parse::<StoreUrl>().map(|parsed| parsed.to_string()), Ok(url.to_owned()));
        }
        for url in [
            "",
            "x",
            "sled:",
            "sqlite:",
            "memory:x",
            "postgres:",
            "postgres://",
            "nats:h",
            "nats://h",
            "nats://h/",
            "https://h",
            "https://me:s3cret@h:1",
            "https://h:1?tls=off",
            "http://h:1/log",
            "tape:reel",
        ] {
            assert!(url.parse::<StoreUrl>().is_err(), "{url}");
        }
    }

    #[test]
    fn the_name_of_a_log_depends_on_where_it_is_and_on_no_password() {
        let name = |url: &str| url.parse::<StoreUrl>().unwrap().name_of_server_log();
        for (one, other) in [
            ("postgres://me:a@h/db", "postgresql://me:b@h/db?password=c&connect_timeout=3"),
            ("nats://a:b@h:1/S?tls=off", "nats://c@h:1/S"),
        ] {
            assert_eq!(name(one), name(other));
        }
        for (one, other) in [
            ("postgres://me@h/db", "postgres://me@h/other"),
            ("postgres://me@h/db", "postgres://you@h/db"),
            ("postgres://me@h/db", "postgres://me@h/db?options=-csearch_path%3Dshop"),
            ("nats://h/S", "nats://h/T"),
        ] {
            assert_ne!(name(one), name(other));
        }
        assert_eq!(name("memory:"), None);
    }

    #[test]
    fn a_secret_is_never_shown() {
        for url in [
            "postgres://me:s3cret@h/db",
            "postgres://me:p@s3cret@h/db?password=s3cret",
            "nats://s3cret@h/S?creds=s3cret",
            "postgres://me@h/db?password=x@s3cret",
            "postgres://h/db?password=x@s3cret",
            "postgres://me:p?s3cret@h/db",
            "postgres://me:s3cret?p@h/db",
            "postgres://me@work:s3cret?p@h/db",
            "postgres://me:s3cret/p@h/db",
            "postgres://me:s3cret#p@h/db",
            "nats://me:x@s3cret@h,me:s3cret@i/S",
        ] {
            let parsed: StoreUrl = url.parse().unwrap();
            assert!(!format!("{parsed} {parsed:?}").contains("s3cret"), "{parsed}");
        }
    }
}
