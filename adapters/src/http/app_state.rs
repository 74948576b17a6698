//! The state that all requests share: the store once it is open, the keys, and whether the service is stopping.

use std::{
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use application::{PetStore, ports::Position};
use tokio::sync::{Semaphore, watch};

use super::{
    error::ApiError,
    middleware::{rate_limit::FailedAuth, request_log::RequestLog, request_metrics::RequestMetrics},
    server::{Listener, Tls},
    settings::{HttpSettings, LOG_READERS_MAX},
};
use crate::access::api_keys::ApiKeys;

/// The state of the HTTP adapter. It exists before the store is open, because the probes need it.
pub struct AppState {
    pub(super) keys: Arc<ApiKeys>,
    pub(super) request_log: Arc<RequestLog>,
    pub(super) failed_auth: Option<FailedAuth>,
    pub(super) metrics: RequestMetrics,
    pub(super) settings: HttpSettings,
    /// Returns the number of dropped log lines, for the metrics.
    pub(super) dropped_log_lines: Box<dyn Fn() -> u64 + Send + Sync>,
    pub(super) public: Arc<Listener>,
    pub(super) admin: Arc<Listener>,
    /// A permit for each response of `/log`.
    pub(super) log_readers: Arc<Semaphore>,
    /// The progress that the probes show until the store is open: the last applied position, and the head.
    pub replay: watch::Sender<(Position, Position)>,
    store: OnceLock<Arc<PetStore>>,
    draining: AtomicBool,
    /// Whether endless responses have to end, after everything that is stored now.
    pub(super) ending: watch::Sender<bool>,
}

impl AppState {
    /// A service without a store: `/v1` gets 503. With a certificate, both listeners serve HTTPS, otherwise plain HTTP.
    /// `dropped_log_lines` returns the number of dropped log lines, for the metrics.
    pub fn new(
        keys: Arc<ApiKeys>,
        settings: HttpSettings,
        tls: Option<&Arc<Tls>>,
        dropped_log_lines: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let request_log = Arc::new(RequestLog::new(&settings));
        let listener = |name, limits| {
            let request_log = request_log.clone();
            let log_unparsed = move |peer: IpAddr, error: &str| request_log.record_unparsed(peer, error);
            Listener::new(name, limits, &settings, tls.cloned(), log_unparsed)
        };
        Self {
            keys,
            failed_auth: settings.failed_auth_limit.map(FailedAuth::new),
            metrics: RequestMetrics::default(),
            dropped_log_lines: Box::new(dropped_log_lines),
            public: listener("public", settings.public),
            admin: listener("admin", settings.admin),
            log_readers: Arc::new(Semaphore::new(LOG_READERS_MAX)),
            replay: watch::Sender::default(),
            store: OnceLock::new(),
            draining: AtomicBool::new(false),
            ending: watch::Sender::default(),
            request_log,
            settings,
        }
    }

    /// Starts to serve the store. A second store is ignored.
    pub fn open(&self, store: Arc<PetStore>) {
        let _ = self.store.set(store);
    }

    /// Reports `draining` at `/readyz`. Requests are served until [`serve`](super::serve) is shut down.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn opened(&self) -> Option<&PetStore> {
        self.store.get().map(|store| &**store)
    }

    /// The store, or the error response before it is open.
    pub(super) fn store(&self) -> Result<Arc<PetStore>, ApiError> {
        self.store.get().cloned().ok_or(ApiError::Starting)
    }
}
