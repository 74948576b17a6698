//! The state that all requests share: the store once it is open, the keys, and whether the service is stopping.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use application::{PetStore, ReplayProgress};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::{
    admin::log::LOG_READERS_MAX,
    error::ApiError,
    middleware::{failed_auth::FailedAuth, request_log::RequestLog, request_metrics::RequestMetrics},
    server::{OpenConnections, Tls},
    settings::HttpSettings,
};
use crate::access::Authenticator;

/// The state of the HTTP adapter. It exists before the store is open, because the probes need it.
pub struct AppState {
    pub(super) keys: Arc<dyn Authenticator>,
    pub(super) request_log: RequestLog,
    pub(super) failed_auth: Option<FailedAuth>,
    pub(super) metrics: RequestMetrics,
    pub(super) settings: HttpSettings,
    /// Returns the number of dropped log lines, for the metrics.
    pub dropped_log_lines: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Serves HTTPS with this certificate; without it, plain HTTP.
    pub tls: Option<Arc<Tls>>,
    pub(super) listeners: Mutex<Vec<Arc<OpenConnections>>>,
    /// A permit for each response of `/log`.
    pub(super) log_readers: Arc<Semaphore>,
    /// The progress that the probes show until the store is open.
    pub replay: Arc<ReplayProgress>,
    store: OnceLock<Arc<PetStore>>,
    draining: AtomicBool,
    /// Whether endless responses have to end, after everything that is stored now.
    pub(super) ending: watch::Sender<bool>,
}

impl AppState {
    /// A service without a store: `/v1` gets 503.
    pub fn new(keys: Arc<dyn Authenticator>, settings: HttpSettings) -> Self {
        Self {
            keys,
            request_log: RequestLog::new(&settings),
            failed_auth: settings.failed_auth_limit.map(FailedAuth::new),
            metrics: RequestMetrics::default(),
            settings,
            dropped_log_lines: Box::new(|| 0),
            tls: None,
            listeners: Mutex::default(),
            log_readers: Arc::new(Semaphore::new(LOG_READERS_MAX)),
            replay: Arc::default(),
            store: OnceLock::new(),
            draining: AtomicBool::new(false),
            ending: watch::Sender::default(),
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
        self.store.get().cloned().ok_or(ApiError::Unavailable("the service is starting"))
    }
}
