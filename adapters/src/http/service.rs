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
    limits::ClientLimits,
    middleware::{
        failed_auth::FailedAuth,
        request_id::RequestIds,
        request_log::{AccessLog, RequestLog},
    },
    server::{Admission, Tls, UnsentBytes},
    site::Site,
};
use crate::access::Authenticator;

/// The state of the HTTP port. It can answer probes before the store is open and while it is going away.
pub struct Service {
    pub(super) keys: Arc<dyn Authenticator>,
    pub(super) request_log: RequestLog,
    pub(super) client_limits: ClientLimits,
    pub(super) failed_auth: Option<FailedAuth>,
    pub(super) ids: RequestIds,
    pub(super) metrics: Metrics,
    pub(super) site: Site,
    pub(super) unsent: Arc<UnsentBytes>,
    pub(super) dropped_log_lines: Arc<AtomicU64>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) listeners: Mutex<Vec<Arc<Admission>>>,
    /// A place for each response that sends the log.
    pub(super) log_readers: Arc<Semaphore>,
    /// The progress of the replay, until the store is open.
    pub(super) replay: Arc<ReplayProgress>,
    store: OnceLock<Arc<PetStore>>,
    draining: AtomicBool,
    /// Whether responses without an end have to come to one.
    leaving: watch::Sender<bool>,
}

impl Service {
    /// A service that is starting: it knows who may call, but has nothing to show yet. It shows the number of
    /// dropped lines in its metrics.
    pub fn new(keys: Arc<dyn Authenticator>, site: Site, dropped_log_lines: Arc<AtomicU64>) -> Self {
        Self {
            keys,
            request_log: RequestLog::default(),
            client_limits: ClientLimits::default(),
            failed_auth: None,
            ids: RequestIds::new(),
            metrics: Metrics::default(),
            site,
            unsent: Arc::default(),
            dropped_log_lines,
            tls: None,
            listeners: Mutex::default(),
            log_readers: Arc::new(Semaphore::new(LOG_READERS_MAX)),
            replay: Arc::default(),
            store: OnceLock::new(),
            draining: AtomicBool::new(false),
            leaving: watch::Sender::default(),
        }
    }

    /// The same service, which shows in its metrics when this certificate expires.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// The same service, which logs these requests.
    #[must_use]
    pub fn with_access_log(mut self, which: AccessLog) -> Self {
        self.request_log.which = which;
        self
    }

    /// The same service, with limits for each client.
    #[must_use]
    pub fn with_client_limits(self, client_limits: ClientLimits) -> Self {
        let failed_auth = client_limits.failed_auth.map(FailedAuth::new);
        Self { client_limits, failed_auth, ..self }
    }

    /// What the probes show until the store is open.
    pub fn replay(&self) -> Arc<ReplayProgress> {
        self.replay.clone()
    }

    /// Starts to serve the store. Only the first store counts.
    pub fn open(&self, store: Arc<PetStore>) {
        // Nothing else could be done with a second store than to ignore it.
        let _ = self.store.set(store);
    }

    /// Says at `/readyz` that this node is leaving. It goes on serving until [`serve`](super::serve) is told to end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Ends the responses that have no end of their own, after what is stored by now.
    pub(super) fn end_streams(&self) {
        self.leaving.send_replace(true);
    }

    /// Tells when [`end_streams`](Self::end_streams) is called.
    pub(super) fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    /// How many responses that send the log are under way.
    pub(super) fn log_readers(&self) -> usize {
        LOG_READERS_MAX - self.log_readers.available_permits()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether this node reads and writes as it should, and means to go on.
    pub(super) fn is_ready(&self) -> bool {
        !self.is_draining() && self.opened().is_some_and(|store| store.health().not_ready().is_none())
    }

    pub(super) fn opened(&self) -> Option<&PetStore> {
        self.store.get().map(|store| &**store)
    }

    /// The store, or the error response before it is open.
    pub(super) fn store(&self) -> Result<Arc<PetStore>, ApiError> {
        self.store.get().cloned().ok_or(ApiError::Unavailable("the service is starting".into()))
    }
}
