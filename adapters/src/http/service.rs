//! What every request has access to: the store once it is open, the keys, and whether the service is
//! stopping.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use application::{PetStore, ReplayProgress};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::{
    admin::{log::LOG_READERS_MAX, metrics::Metrics},
    error::ApiError,
    middleware::{
        client_address::TrustedProxy,
        failed_auth::FailedAuth,
        request_id::RequestIds,
        request_log::{AccessLog, RequestLog},
    },
    server::{Admission, HeldBytes, Tls},
    site::Site,
};
use crate::access::{Authenticator, RateLimit};

/// Limits per client address. None by default.
#[derive(Debug, Clone, Default)]
pub struct ClientLimits {
    /// The rate of invalid keys that get 401; above it, they get 429.
    pub failed_auth: Option<RateLimit>,
    /// Proxies whose forwarding headers are trusted.
    pub trusted_proxies: Vec<TrustedProxy>,
}

/// The state of the HTTP adapter. It serves probes before the store is open, too.
pub struct Service {
    pub(super) keys: Arc<dyn Authenticator>,
    pub(super) request_log: RequestLog,
    pub(super) client_limits: ClientLimits,
    pub(super) failed_auth: Option<FailedAuth>,
    pub(super) ids: RequestIds,
    pub(super) metrics: Metrics,
    pub(super) site: Site,
    pub(super) held: Arc<HeldBytes>,
    pub(super) dropped_log_lines: Arc<AtomicU64>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) listeners: Mutex<Vec<Arc<Admission>>>,
    /// A permit for each response of `/log`.
    pub(super) log_readers: Arc<Semaphore>,
    /// The progress that the probes show until the store is open.
    pub replay: Arc<ReplayProgress>,
    store: OnceLock<Arc<PetStore>>,
    draining: AtomicBool,
    /// Whether endless responses have to end, after everything that is stored now.
    pub(super) ending: watch::Sender<bool>,
}

impl Service {
    /// A service without a store: `/v1` gets 503. `dropped_log_lines` is shown in the metrics.
    pub fn new(keys: Arc<dyn Authenticator>, site: Site, dropped_log_lines: Arc<AtomicU64>) -> Self {
        Self {
            keys,
            request_log: RequestLog::default(),
            client_limits: ClientLimits::default(),
            failed_auth: None,
            ids: RequestIds::new(),
            metrics: Metrics::default(),
            site,
            held: Arc::default(),
            dropped_log_lines,
            tls: None,
            listeners: Mutex::default(),
            log_readers: Arc::new(Semaphore::new(LOG_READERS_MAX)),
            replay: Arc::default(),
            store: OnceLock::new(),
            draining: AtomicBool::new(false),
            ending: watch::Sender::default(),
        }
    }

    /// Shows in the metrics when this certificate expires.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// Selects the requests that are logged.
    #[must_use]
    pub fn with_access_log(mut self, which: AccessLog) -> Self {
        self.request_log.which = which;
        self
    }

    /// Sets the limits per client address.
    #[must_use]
    pub fn with_client_limits(self, client_limits: ClientLimits) -> Self {
        let failed_auth = client_limits.failed_auth.map(FailedAuth::new);
        Self { client_limits, failed_auth, ..self }
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
        self.store.get().cloned().ok_or(ApiError::Unavailable("the service is starting".into()))
    }
}
