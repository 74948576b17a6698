//! Store URLs, which select a storage engine and a log.

use std::{
    fmt,
    path::{self, Component, Path, PathBuf},
    ptr,
    str::FromStr,
};

use adapters::service_client::ServiceUrl;
use application::LogAccess;

use super::engines::{Backend, Location};

#[derive(Clone)]
pub(crate) enum StoreUrl {
    /// A log in a storage engine.
    Engine {
        engine: &'static Backend,
        /// A path, or the whole URL of a server.
        place: String,
    },
    /// A running service, whose log can be read.
    Service(ServiceUrl),
}

impl StoreUrl {
    /// Whether other nodes may write to the same log.
    pub(crate) fn access(&self) -> LogAccess {
        match self {
            Self::Engine { engine: Backend { location: Location::Server { .. }, .. }, .. }
            | Self::Service(_) => LogAccess::Shared,
            Self::Engine { .. } => LogAccess::Exclusive,
        }
    }

    /// Whether both are the same log, as far as this is known without asking a server.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Engine { engine, place }, Self::Engine { engine: other_engine, place: other_place }) => {
                let others = servers(other_place);
                ptr::eq(*engine, *other_engine)
                    && match engine.location {
                        Location::Path { .. } => canonical(place) == canonical(other_place),
                        Location::Server { .. } => {
                            self.log_name() == other.log_name()
                                && servers(place).iter().any(|server| others.contains(server))
                        }
                        Location::Memory => false,
                    }
            }
            (Self::Service(one), Self::Service(other)) => one == other,
            (Self::Engine { .. } | Self::Service(_), _) => false,
        }
    }

    /// The name of the log, by which it is recognised after a restart: the engine, and the absolute path, the database
    /// and schema, or the stream. `None` for a log in memory.
    pub(crate) fn log_name(&self) -> Option<String> {
        match self {
            Self::Engine { engine, place } => match engine.location {
                // The path need not exist, so links are not resolved.
                Location::Path { .. } => {
                    Some(format!("{}:{}", engine.scheme(), absolute(place.as_ref()).display()))
                }
                Location::Server { log_name, .. } => log_name(place),
                Location::Memory => None,
            },
            Self::Service(_) => None,
        }
    }

    /// Whether this path is inside the store. Links are not resolved.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.path().is_some_and(|place| absolute(path).starts_with(absolute(place.as_ref())))
    }

    /// The path of a store on this machine.
    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            Self::Engine { engine: Backend { location: Location::Path { .. }, .. }, place } => Some(place),
            Self::Engine { .. } | Self::Service(_) => None,
        }
    }
}

/// The servers of a URL, without the port that PostgreSQL has by default. The name of a bucket counts as a server.
fn servers(url: &str) -> Vec<String> {
    let url = redacted(url);
    let hosts = url.split_once("://").map_or("", |(_, place)| place.split('/').next().unwrap_or(place));
    hosts.split(',').map(|host| host.strip_suffix(":5432").unwrap_or(host).to_ascii_lowercase()).collect()
}

/// The same path for every spelling: absolute, without `..` and without a slash at its end.
fn absolute(path: &Path) -> PathBuf {
    let mut absolute = PathBuf::new();
    for part in path::absolute(path).unwrap_or_else(|_| path.to_owned()).components() {
        match part {
            Component::ParentDir => {
                absolute.pop();
            }
            _ => absolute.push(part),
        }
    }
    absolute
}

/// The path with its links resolved, if it exists.
fn canonical(path: &str) -> PathBuf {
    Path::new(path).canonicalize().unwrap_or_else(|_| absolute(path.as_ref()))
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let unknown = || {
            let forms = Backend::url_forms();
            let service = "commands that only read a log also accept https://HOST:PORT of a running service";
            let file = "import an exported file into an empty store first (petstore log import)";
            format!("expected one of {forms}; {service}; {file}")
        };
        let (scheme, rest) = url.split_once(':').ok_or_else(unknown)?;
        if let "http" | "https" = scheme {
            return url.parse().map(Self::Service).map_err(str::to_owned);
        }
        let engine = Backend::with_scheme(scheme)
            .ok_or_else(|| Backend::how_to_build(scheme).unwrap_or_else(unknown))?;
        let place = match engine.location {
            Location::Path { .. } if rest.starts_with("file:") || rest.starts_with("//") => {
                return Err(format!(
                    "a path follows {scheme}:, not a URL: write {scheme}:PATH, without file: or //"
                ));
            }
            Location::Path { .. } if rest == ":memory:" => {
                return Err("for a log in memory, write memory:".into());
            }
            Location::Path { .. } if rest.contains('?') => {
                return Err(format!(
                    "a path follows {scheme}:, without options: leave out the '?' and all after it"
                ));
            }
            Location::Path { .. } if canonical(rest) == Path::new("/") => {
                return Err("the root directory cannot hold a store: name a path below it".into());
            }
            Location::Path { .. } => (!rest.is_empty()).then_some(rest),
            Location::Server { log_name, .. } => log_name(url).map(|_| url),
            Location::Memory => rest.is_empty().then_some(rest),
        };
        place
            .map(|place| Self::Engine { engine, place: place.to_owned() })
            .ok_or_else(|| format!("expected {}", engine.url_form()))
    }
}

/// The URL without secrets.
impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine { engine: Backend { location: Location::Server { .. }, .. }, place } => {
                formatter.write_str(&redacted(place))
            }
            Self::Engine { engine, place } => write!(formatter, "{}:{place}", engine.scheme()),
            Self::Service(url) => url.fmt(formatter),
        }
    }
}

/// clap may print the arguments after a mistake.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The URL without user, password and options. A raw password may hold any character: an `@` after a `?` or `#` can be
/// part of the password or of an option. In that case only the scheme is shown.
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

    /// Whether the engine of a URL is in this build.
    fn is_built(url: &str) -> bool {
        Backend::with_scheme(url.split(':').next().unwrap()).is_some()
    }

    #[test]
    fn the_error_for_an_engine_that_is_not_in_the_build_says_how_to_get_it() {
        for (url, feature, is_built) in [
            ("sqlite:pets", "sqlite", cfg!(feature = "sqlite")),
            ("postgres://h/db", "postgres", cfg!(feature = "postgres")),
            ("postgresql://h/db", "postgres", cfg!(feature = "postgres")),
            ("nats://h/S", "nats", cfg!(feature = "nats")),
            ("s3://b/p", "s3", cfg!(feature = "s3")),
        ] {
            let error = url.parse::<StoreUrl>().err();
            assert_eq!(error.is_none(), is_built, "{url}");
            let command = format!(
                "the feature {feature} (cargo build --release --features {feature}), or use a package"
            );
            assert!(error.is_none_or(|error| error.contains(&command)), "{url}");
        }
    }

    #[test]
    fn every_engine_has_a_scheme() {
        let urls = "sled:a/b sqlite:/x.db memory: postgres://h/db nats://h:4222,i:4222/PETS s3://b/p/q";
        for url in urls.split(' ').filter(|url| is_built(url)).chain(["https://h:9080"]) {
            assert_eq!(url.parse::<StoreUrl>().map(|parsed| parsed.to_string()), Ok(url.to_owned()));
        }
        let embedded = "sled: sqlite: sqlite:file:x.db sqlite://host/path.db sled:/ sled:/. sled:x?mode=ro sqlite::memory: memory:x";
        let servers = "postgres: postgres:// nats:h nats://h nats://h/ s3:b/p s3://b s3://b/ s3://u:s@b/p s3://b/p?x https://h https://me:s3cret@h:1";
        let others = "https://h:1?tls=off http://h:1/log tape:reel x";
        for url in [embedded, servers, others].into_iter().flat_map(|list| list.split(' ')).chain([""]) {
            assert!(url.parse::<StoreUrl>().is_err(), "{url}");
        }
    }

    #[test]
    fn a_log_is_named_after_its_engine_and_place_and_not_after_server_user_or_password() {
        let name = |url: &str| url.parse::<StoreUrl>().unwrap().log_name();
        for (one, other) in [
            ("postgres://me:a@h/db", "postgresql://me:b@h/db?password=c&connect_timeout=3"),
            ("postgres://me@h/db", "postgres://you@other:1,another/db"),
            ("nats://a:b@h:1/S?tls=off", "nats://c@other:2/S"),
            ("s3://b/p", "s3://b/p/"),
            ("sled:pets/log", "sled:./pets/log"),
            ("sled:pets/log", "sled:pets/log/"),
            ("sled:pets/log", "sled:cats/../pets//log"),
        ]
        .into_iter()
        .filter(|(one, _)| is_built(one))
        {
            assert_eq!(name(one), name(other));
        }
        for (one, other) in [
            ("postgres://me@h/db", "postgres://me@h/other"),
            ("postgres://me@h/db", "postgres://me@h/db?options=-csearch_path%3Dshop"),
            ("nats://h/S", "nats://h/T"),
            ("s3://b/p", "s3://b/q"),
            ("s3://b/p", "s3://c/p"),
            ("sled:pets", "sqlite:pets"),
            ("sled:pets", "sled:other"),
        ]
        .into_iter()
        .filter(|(one, other)| is_built(one) && is_built(other))
        {
            assert_ne!(name(one), name(other));
        }
        assert_eq!(name("memory:"), None);
    }

    #[test]
    fn a_log_on_a_server_is_the_same_for_every_spelling_of_its_url() {
        let is_same = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|url| url.parse::<StoreUrl>().unwrap());
            assert_eq!(one.is_same_as(&other), other.is_same_as(&one));
            one.is_same_as(&other)
        };
        for (one, other) in [
            ("postgres://me@h/db", "postgresql://you:secret@H:5432/db?connect_timeout=3"),
            ("postgres://me@h,i/db", "postgres://me@i/db"),
            ("nats://a:b@h:1/S", "nats://h:1,i:1/S?tls=off"),
            ("s3://b/p", "s3://b/p/"),
        ]
        .into_iter()
        .filter(|(one, _)| is_built(one))
        {
            assert!(is_same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("postgres://me@h/db", "postgres://me@i/db"),
            ("postgres://me@h/db", "postgres://me@h:5433/db"),
            ("postgres://me@h/db", "postgres://me@h/other"),
            ("nats://h:1/S", "nats://h:1/T"),
            ("s3://b/p", "s3://c/p"),
        ]
        .into_iter()
        .filter(|(one, _)| is_built(one))
        {
            assert!(!is_same(one, other), "{one} {other}");
        }
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
        ]
        .into_iter()
        .filter(|url| is_built(url))
        {
            let parsed: StoreUrl = url.parse().unwrap();
            assert!(!format!("{parsed} {parsed:?}").contains("s3cret"), "{parsed}");
        }
    }
}
