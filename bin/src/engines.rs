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

static ENGINES: &[EngineEntry] = &[
    EngineEntry::embedded::<Sled>(),
    #[cfg(feature = "sqlite")]
    EngineEntry::embedded::<Sqlite>(),
    #[cfg(feature = "postgres")]
    EngineEntry {
        schemes: &["postgres", "postgresql"],
        location: Location::Server { form: "postgres://USER@HOST/DATABASE", log_name: PostgresLog::name_in },
        access: LogAccess::Shared,
        open: |url| Box::pin(async move { Ok(opened(PostgresLog::open(&url).await?)) }),
        open_existing: |url, newest| {
            Box::pin(async move { Ok(opened(PostgresLog::open_preferring(&url, newest).await?)) })
        },
        read: |url, _| Box::pin(async move { Ok(source(PostgresLog::open_existing(&url).await?)) }),
        salvage: |url| {
            Box::pin(async move { SalvagedLog::new(PostgresLog::open_existing(&url).await?).await })
        },
    },
    #[cfg(feature = "nats")]
    EngineEntry {
        schemes: &["nats"],
        location: Location::Server { form: "nats://HOST:PORT/STREAM", log_name: NatsLog::name_in },
        access: LogAccess::Shared,
        open: |url| Box::pin(async move { Ok(opened(NatsLog::open(&url).await?)) }),
        open_existing: |url, _| Box::pin(async move { Ok(opened(NatsLog::open_existing(&url).await?)) }),
        read: |url, _| Box::pin(async move { Ok(source(NatsLog::open_existing(&url).await?)) }),
        salvage: |url| Box::pin(async move { SalvagedLog::new(NatsLog::salvage(&url).await?).await }),
    },
    #[cfg(feature = "s3")]
    EngineEntry {
        schemes: &["s3"],
        location: Location::Server { form: "s3://BUCKET/PREFIX", log_name: ObjectLog::name_in },
        access: LogAccess::Shared,
        open: |url| {
            Box::pin(async move { Ok(opened(ObjectLog::open(&url, &Variables::of_this_process()).await?)) })
        },
        open_existing: |url, _| {
            Box::pin(async move {
                Ok(opened(ObjectLog::open_existing(&url, &Variables::of_this_process()).await?))
            })
        },
        read: |url, purpose| {
            Box::pin(async move {
                Ok(source(ObjectLog::read_only(&url, &Variables::of_this_process(), purpose).await?))
            })
        },
        salvage: |url| {
            Box::pin(async move {
                SalvagedLog::new(ObjectLog::salvage(&url, &Variables::of_this_process()).await?).await
            })
        },
    },
    EngineEntry {
        schemes: &["memory"],
        location: Location::Memory,
        access: LogAccess::Exclusive,
        open: |_| Box::pin(async { Ok(opened(MemoryLog::default())) }),
        open_existing: |_, _| Box::pin(async { Ok(opened(MemoryLog::default())) }),
        read: |_, _| Box::pin(async { Ok(source(MemoryLog::default())) }),
        salvage: |_| Box::pin(async { SalvagedLog::new(MemoryLog::default()).await }),
    },
];

/// A storage engine that a store URL can select.
pub(crate) struct EngineEntry {
    /// The scheme of its URLs, and its aliases.
    schemes: &'static [&'static str],
    pub(crate) location: Location,
    /// Whether other nodes may write to the same log.
    pub(crate) access: LogAccess,
    /// Opens the log, and creates it if it does not exist.
    pub(crate) open: fn(String) -> Opening<Log>,
    /// Opens an existing log, if possible on a server that holds this commit. Creates nothing.
    pub(crate) open_existing: fn(String, Version) -> Opening<Log>,
    /// Opens an existing log read-only.
    pub(crate) read: fn(String, ReadPurpose) -> Opening<Source>,
    /// Finds every readable record of a log that may be damaged, without changing it.
    pub(crate) salvage: fn(String) -> Opening<SalvagedLog>,
}

/// Where an engine keeps its logs, which determines what follows the scheme in a URL.
pub(crate) enum Location {
    /// A path on this machine.
    Path,
    /// Servers. The engine gets the whole URL.
    #[cfg_attr(
        not(any(feature = "nats", feature = "postgres", feature = "s3")),
        expect(dead_code, reason = "this build has no such engine")
    )]
    Server {
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

impl EngineEntry {
    /// The entry of an engine that stores files on this machine.
    pub(crate) const fn embedded<E: embedded::Engine>() -> Self {
        Self {
            schemes: &[E::NAME],
            location: Location::Path,
            access: LogAccess::Exclusive,
            open: |path| blocking(move || Ok(opened(EmbeddedLog::<E>::open(path)?))),
            open_existing: |path, _| blocking(move || Ok(opened(EmbeddedLog::<E>::open_existing(path)?))),
            read: |path, _| blocking(move || Ok(source(ReadOnlyLog::open::<E>(path)?))),
            salvage: |path| blocking(move || ReadOnlyLog::salvage::<E>(path)),
        }
    }

    /// The engine whose URLs have this scheme.
    pub(crate) fn with_scheme(scheme: &str) -> Option<&'static Self> {
        ENGINES.iter().find(|engine| engine.schemes.contains(&scheme))
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.schemes[0]
    }

    /// The URL forms of all engines, for messages. `memory:` comes last.
    pub(crate) fn url_forms() -> String {
        ENGINES.iter().map(Self::url_form).collect::<Vec<_>>().join(", ")
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

fn opened(log: impl EventLog) -> Log {
    Arc::new(log)
}

fn source(log: impl LogSource) -> Source {
    Arc::new(log)
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
