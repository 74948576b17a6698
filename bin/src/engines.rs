//! The table of storage engines. A new engine is a directory in `adapters/src/event_log` and a row here.

use std::{pin::Pin, sync::Arc};

#[cfg(feature = "nats")]
use adapters::event_log::nats::NatsLog;
#[cfg(feature = "s3")]
use adapters::event_log::object_store::{self, ObjectLog};
#[cfg(feature = "postgres")]
use adapters::event_log::postgres::PostgresLog;
#[cfg(feature = "sqlite")]
use adapters::event_log::sqlite::Sqlite;
use adapters::event_log::{
    ReadPurpose,
    embedded::{self, EmbeddedLog, ReadOnlyLog},
    memory::MemoryLog,
    sled::Sled,
};
use application::{
    ports::{EventLog, Fault, LogError, LogSource, Version},
    transfer::SalvagedLog,
};

/// The store of a service that names none.
pub(crate) const DEFAULT_STORE: &str = "sled:petstore-data/log";

static BACKENDS: &[Backend] = &[
    Backend::embedded::<Sled>(),
    #[cfg(feature = "sqlite")]
    Backend::embedded::<Sqlite>(),
    #[cfg(feature = "postgres")]
    Backend {
        schemes: &["postgres", "postgresql"],
        location: Location::Server {
            form: "postgres://USER@HOST/DATABASE (password in PGPASSWORD or a passfile)",
            log_name: PostgresLog::name_in,
        },
        open: |url, known| log(async move { PostgresLog::open(&url, known).await }),
        read: |url, _| source(async move { PostgresLog::open_existing(&url).await }),
    },
    #[cfg(feature = "nats")]
    Backend {
        schemes: &["nats"],
        location: Location::Server {
            form: "nats://HOST:PORT/STREAM (password in NATS_PASSWORD or a creds file)",
            log_name: NatsLog::name_in,
        },
        open: |url, known| log(async move { NatsLog::open(&url, known).await }),
        read: |url, purpose| source(async move { NatsLog::open_existing(&url, purpose).await }),
    },
    #[cfg(feature = "s3")]
    Backend {
        schemes: &["s3"],
        location: Location::Server {
            form: "s3://BUCKET/PREFIX (password in AWS_SECRET_ACCESS_KEY)",
            log_name: ObjectLog::name_in,
        },
        open: |url, known| log(async move { ObjectLog::open(&url, &object_store::variables(), known).await }),
        read: |url, purpose| {
            source(async move { ObjectLog::read_only(&url, &object_store::variables(), purpose).await })
        },
    },
    Backend {
        schemes: &["memory"],
        location: Location::Memory,
        open: |_, _| log(async { Ok(MemoryLog::default()) }),
        read: |_, _| source(async { Ok(MemoryLog::default()) }),
    },
];

/// A storage engine that a store URL can select.
pub(crate) struct Backend {
    /// The scheme of its URLs, and its aliases.
    schemes: &'static [&'static str],
    pub(crate) location: Location,
    /// Opens the log. Without a known commit, a missing log is created; with one, nothing is created, and a server that
    /// holds this commit is preferred.
    pub(crate) open: fn(String, Option<Version>) -> Opening<Log>,
    /// Opens an existing log read-only.
    pub(crate) read: fn(String, ReadPurpose) -> Opening<Source>,
}

/// Where an engine keeps its logs, which determines what follows the scheme in a URL.
pub(crate) enum Location {
    /// A path on this machine.
    Path {
        /// Finds every readable record of a log that may be damaged, without changing it.
        salvage: fn(String) -> Opening<SalvagedLog>,
    },
    /// Servers, which nodes can share. The engine gets the whole URL.
    #[cfg_attr(
        not(any(feature = "nats", feature = "postgres", feature = "s3")),
        expect(dead_code, reason = "this build has no such engine")
    )]
    Server {
        /// The form of its URLs, and where the password belongs, because other users can see a URL.
        form: &'static str,
        /// Returns the name of the log that a URL selects, by which it is recognised after a restart; `None` if the URL
        /// selects none. It contains no password.
        log_name: fn(&str) -> Option<String>,
    },
    /// The memory of this process.
    Memory,
}

pub(crate) type Log = Arc<dyn EventLog>;
pub(crate) type Source = Arc<dyn LogSource>;
pub(crate) type Opening<T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send>>;

impl Backend {
    /// The row of an engine that stores files on this machine.
    pub(crate) const fn embedded<E: embedded::Engine>() -> Self {
        Self {
            schemes: &[E::NAME],
            location: Location::Path {
                salvage: |path| Box::pin(blocking(move || ReadOnlyLog::salvage::<E>(path))),
            },
            open: |path, known| {
                log(blocking(move || match known {
                    None => EmbeddedLog::<E>::open(path),
                    Some(_) => EmbeddedLog::<E>::open_existing(path),
                }))
            },
            read: |path, _| source(blocking(move || ReadOnlyLog::open::<E>(path))),
        }
    }

    /// The engine whose URLs have this scheme.
    pub(crate) fn with_scheme(scheme: &str) -> Option<&'static Self> {
        BACKENDS.iter().find(|backend| backend.schemes.contains(&scheme))
    }

    /// Says how to get an engine that this build lacks. Each has a Cargo feature; `None` if there is no such engine.
    pub(crate) fn how_to_build(scheme: &str) -> Option<String> {
        let feature = match scheme {
            "postgresql" => "postgres",
            "sqlite" | "postgres" | "nats" | "s3" => scheme,
            _ => return None,
        };
        Some(format!(
            "this build lacks the engine of {scheme}: URLs: build petstore with the feature {feature} (cargo build --release \
             --features {feature}), or use a package, which has every engine"
        ))
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.schemes[0]
    }

    /// The URL forms of all engines.
    pub(crate) fn url_forms() -> String {
        BACKENDS.iter().map(Self::url_form).collect::<Vec<_>>().join(", ")
    }

    /// The form of this engine's URLs.
    pub(crate) fn url_form(&self) -> String {
        match self.location {
            Location::Path { .. } => format!("{}:PATH", self.scheme()),
            Location::Server { form, .. } => form.to_owned(),
            Location::Memory => format!("{}: (lost when the process ends)", self.scheme()),
        }
    }
}

fn log<L: EventLog>(opening: impl Future<Output = Result<L, LogError>> + Send + 'static) -> Opening<Log> {
    Box::pin(async { Ok(Arc::new(opening.await?) as Log) })
}

fn source<L: LogSource>(
    opening: impl Future<Output = Result<L, LogError>> + Send + 'static,
) -> Opening<Source> {
    Box::pin(async { Ok(Arc::new(opening.await?) as Source) })
}

/// Opening an embedded engine blocks on the disk.
async fn blocking<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    let opened = tokio::task::spawn_blocking(open).await;
    // Cancelled when the process stops during the opening.
    opened.unwrap_or_else(|error| Err(Fault::CannotOpen.error(format!("opening the log failed: {error}"))))
}
