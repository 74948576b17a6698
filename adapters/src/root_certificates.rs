//! The root certificates that a TLS client trusts. A leaf that every adapter may use.

use std::path::Path;

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// Loads the certificates in a PEM file, or those of the system. The error is one clause.
pub(crate) fn load(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if roots.is_empty() { Err("this system has no root certificates".into()) } else { Ok(roots) };
    };
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let why = match certificates {
        Ok(certificates) => {
            roots.add_parsable_certificates(certificates);
            if !roots.is_empty() {
                return Ok(roots);
            }
            "it contains no PEM certificate".to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(format!("{} holds no usable certificate: {why}", file.display()))
}
