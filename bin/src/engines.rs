//! The table of storage engines. A new engine is a directory in `adapters/src/event_log` and a row here.

use std::{pin::Pin, sync::Arc};

#[cfg(feature = "nats")]
use adapters::event_log::nats::NatsLog;
#[cfg(feature = "s3")]
use adapters::event_log::object_store::{ObjectLog, Variables};
#[cfg(feature = "postgres")]
use adapters::event_log::postgres::PostgresLog;
#[cfg(feature = "sqlite")]
use adapters::event_log::sqlite::Sqlite;
use adapters::event_log::{
    ReadPurpose, SalvagedLog,
    embedded::{self, EmbeddedLog, ReadOnlyLog},
    memory::MemoryLog,
    sled::Sled,
};
use application::{
    LogAccess,
    ports::{EventLog, Fault, LogError, LogSource, Version},
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
            form: "postgres://USER@HOST/DATABASE",
            password: "PGPASSWORD or a passfile",
            log_name: PostgresLog::name_in,
        },
        open: |url, known| {
            Box::pin(async move {
                Ok(Arc::new(match known {
                    None => PostgresLog::open(&url).await?,
                    Some(newest) => PostgresLog::open_preferring(&url, newest).await?,
                }) as Log)
            })
        },
        read: |url, _| {
            Box::pin(async move { Ok(Arc::new(PostgresLog::open_existing(&url).await?) as Source) })
        },
        salvage: |url| {
            Box::pin(async move { SalvagedLog::new(PostgresLog::open_existing(&url).await?).await })
        },
    },
    #[cfg(feature = "nats")]
    Backend {
        schemes: &["nats"],
        location: Location::Server {
            form: "nats://HOST:PORT/STREAM",
            password: "NATS_PASSWORD or a creds file",
            log_name: NatsLog::name_in,
        },
        open: |url, known| {
            Box::pin(async move {
                Ok(Arc::new(match known {
                    None => NatsLog::open(&url).await?,
                    Some(_) => NatsLog::open_existing(&url).await?,
                }) as Log)
            })
        },
        read: |url, _| Box::pin(async move { Ok(Arc::new(NatsLog::open_existing(&url).await?) as Source) }),
        salvage: |url| Box::pin(async move { SalvagedLog::new(NatsLog::salvage(&url).await?).await }),
    },
    #[cfg(feature = "s3")]
    Backend {
        schemes: &["s3"],
        location: Location::Server {
            form: "s3://BUCKET/PREFIX",
            password: "AWS_SECRET_ACCESS_KEY",
            log_name: ObjectLog::name_in,
        },
        open: |url, known| {
            Box::pin(async move {
                let variables = Variables::of_this_process();
                Ok(Arc::new(match known {
                    None => ObjectLog::open(&url, &variables).await?,
                    Some(_) => ObjectLog::open_existing(&url, &variables).await?,
                }) as Log)
            })
        },
        read: |url, purpose| {
            Box::pin(async move {
                let log = ObjectLog::read_only(&url, &Variables::of_this_process(), purpose).await?;
                Ok(Arc::new(log) as Source)
            })
        },
        salvage: |url| {
            Box::pin(async move {
                SalvagedLog::new(ObjectLog::salvage(&url, &Variables::of_this_process()).await?).await
            })
        },
    },
    Backend {
        schemes: &["memory"],
        location: Location::Memory,
        open: |_, _| Box::pin(async { Ok(Arc::<MemoryLog>::default() as Log) }),
        read: |_, _| Box::pin(async { Ok(Arc::<MemoryLog>::default() as Source) }),
        salvage: |_| Box::pin(async { SalvagedLog::new(MemoryLog::default()).await }),
    },
];

/// The engines that are compiled only with the Cargo feature of the same name.
const FEATURES: [&str; 4] = ["sqlite", "postgres", "nats", "s3"];

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
    /// Finds every readable record of a log that may be damaged, without changing it.
    pub(crate) salvage: fn(String) -> Opening<SalvagedLog>,
}

/// Where an engine keeps its logs, which determines what follows the scheme in a URL.
pub(crate) enum Location {
    /// A path on this machine.
    Path,
    /// Servers, which nodes can share. The engine gets the whole URL.
    #[cfg_attr(
        not(any(feature = "nats", feature = "postgres", feature = "s3")),
        expect(dead_code, reason = "this build has no such engine")
    )]
    Server {
        form: &'static str,
        /// Where its password belongs, because other users can see a URL.
        password: &'static str,
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
            location: Location::Path,
            open: |path, known| {
                blocking(move || {
                    Ok(Arc::new(match known {
                        None => EmbeddedLog::<E>::open(path)?,
                        Some(_) => EmbeddedLog::<E>::open_existing(path)?,
                    }) as Log)
                })
            },
            read: |path, _| blocking(move || Ok(Arc::new(ReadOnlyLog::open::<E>(path)?) as Source)),
            salvage: |path| blocking(move || ReadOnlyLog::salvage::<E>(path)),
        }
    }

    /// The engine whose URLs have this scheme.
    pub(crate) fn with_scheme(scheme: &str) -> Option<&'static Self> {
        BACKENDS.iter().find(|backend| backend.schemes.contains(&scheme))
    }

    /// Says how to get the engine of this scheme, if it exists and this build lacks it.
    pub(crate) fn how_to_build(scheme: &str) -> Option<String> {
        let name = if scheme == "postgresql" { "postgres" } else { scheme };
        let feature =
            FEATURES.into_iter().find(|feature| *feature == name && Self::with_scheme(name).is_none())?;
        Some(format!(
            "this build lacks the engine of {scheme}: URLs: build petstore with the feature {feature} (cargo build --release \
             --features {feature}), or use a package, which has every engine"
        ))
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.schemes[0]
    }

    /// Whether other nodes may write to the same log.
    pub(crate) fn access(&self) -> LogAccess {
        match self.location {
            Location::Path | Location::Memory => LogAccess::Exclusive,
            Location::Server { .. } => LogAccess::Shared,
        }
    }

    /// The URL forms of all engines, for messages.
    pub(crate) fn url_forms() -> String {
        BACKENDS.iter().map(Self::url_form).collect::<Vec<_>>().join(", ")
    }

    /// The URL forms of all engines, with what an operator has to know about each.
    pub(crate) fn help() -> String {
        let help = |backend: &Self| {
            let form = backend.url_form();
            match backend.location {
                Location::Path => form,
                Location::Server { password, .. } => {
                    format!("{form} (password in {password}, not in the URL)")
                }
                Location::Memory => format!("{form} (lost when the process ends)"),
            }
        };
        BACKENDS.iter().map(help).collect::<Vec<_>>().join(", ")
    }

    /// The form of this engine's URLs, for messages.
    pub(crate) fn url_form(&self) -> String {
        match self.location {
            Location::Path => format!("{}:PATH", self.scheme()),
            Location::Server { form, .. } => form.to_owned(),
            Location::Memory => format!("{}:", self.scheme()),
        }
    }
}

/// Opening an embedded engine blocks on the disk.
fn blocking<T: Send + 'static>(open: impl FnOnce() -> Result<T, LogError> + Send + 'static) -> Opening<T> {
    Box::pin(async {
        let opened = tokio::task::spawn_blocking(open).await;
        // Cancelled when the process stops during the opening.
        opened
            .unwrap_or_else(|error| Err(Fault::CannotOpen.error(format!("opening the log failed: {error}"))))
    })
}
