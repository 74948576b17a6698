//! TLS to a PostgreSQL server, which must present a trusted certificate for the host in the URL.

use std::{path::Path, sync::Arc};

use application::ports::{Fault, LogError};
use rustls::{ClientConfig, crypto::ring};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::root_certificates;

/// Creates a TLS connector that trusts the root certificates from `file` or from the system.
pub(super) fn connector(file: Option<&Path>) -> Result<MakeRustlsConnect, LogError> {
    let roots = root_certificates::load(file)
        .map_err(|why| Fault::CannotOpen.error(format!("{why}; name a PEM file with sslrootcert")))?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
