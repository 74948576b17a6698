//! The log line about the configuration at startup.

use adapters::access::RateLimit;
use clap::{ValueEnum as _, builder::PossibleValue};

use super::ServeArguments;

impl ServeArguments {
    /// Logs the configuration. A store URL shows no password.
    pub(crate) fn log(&self) {
        let limit = |limit: Option<RateLimit>| limit.map(|limit| limit.to_string());
        let level = self.require_durability.to_possible_value();
        tracing::info!(
            target: "petstore::service",
            version = env!("CARGO_PKG_VERSION"),
            pid = std::process::id(),
            listen = %self.listen,
            ops_listen = self.ops_listen.map(display),
            store = %self.store.store,
            require_durability = level.as_ref().map(PossibleValue::get_name),
            keys = %self.keys.display(),
            tls_cert = self.tls_cert.as_ref().map(|path| display(path.display())),
            max_connections = self.max_connections,
            max_pets = self.max_pets,
            rate_limit = limit(self.clients.rate_limit),
            failed_auth_limit = limit(self.clients.failed_auth_limit),
            connections_per_address = self.clients.connections_per_address,
            trusted_proxies = self.clients.trusted_proxy.len(),
            cors_origins = self.cors_origin.len(),
            access_log = self.access_log,
            listen_when_ready = self.listen_when_ready,
            drain_seconds = self.drain.as_secs(),
            "starting"
        );
    }
}
