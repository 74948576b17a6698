//! TLS clients: the root certificates that they trust, and the reasons why they reject a certificate. A leaf that every
//! adapter may use.

use std::{error::Error, io, iter, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, InvalidMessage, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// Creates a client that trusts the certificates in a PEM file, or those of the system. The error is one clause.
pub(crate) fn client(file: Option<&Path>) -> Result<ClientConfig, String> {
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(load(file)?)
        .with_no_client_auth())
}

fn load(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if roots.is_empty() { Err("this system has no root certificates".into()) } else { Ok(roots) };
    };
    let unusable = |why: &str| format!("{} holds no usable certificate: {why}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    roots.add_parsable_certificates(certificates.map_err(|error| unusable(&error.to_string()))?);
    if roots.is_empty() { Err(unusable("it contains no PEM certificate")) } else { Ok(roots) }
}

/// Explains why the certificate of the server was rejected, or returns `None` if the error has another cause. `option`
/// is how to pass a private CA. The library prints most reasons as the names of its variants.
pub(crate) fn rejection(error: &(dyn Error + 'static), option: &str) -> Option<String> {
    let reason = tls_errors(error).find_map(|error| match error {
        rustls::Error::InvalidCertificate(reason) => Some(reason),
        _ => None,
    })?;
    Some(match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: renew it".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: check the clocks".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate was issued for another name: use a name from the certificate".into()
        }
        CertificateError::Other(error) if error.to_string() == "CaUsedAsEndEntity" => {
            "its certificate is that of a CA (CA:TRUE), which cannot identify a server: issue a certificate with CA:FALSE; \
             openssl req -x509 does so with -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:HOST"
                .into()
        }
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            format!(
                "its certificate was not issued by a trusted CA: pass the certificate of its CA with {option}"
            )
        }
        reason => format!("its certificate is not valid: {reason}"),
    })
}

/// Whether the cause of an error is a server that does not use TLS.
pub(crate) fn is_without_tls(error: &(dyn Error + 'static)) -> bool {
    tls_errors(error).any(|error| *error == rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
}

/// Whether TLS is the cause of an error.
#[cfg(any(feature = "nats", feature = "postgres"))]
pub(crate) fn is_tls_error(error: &(dyn Error + 'static)) -> bool {
    tls_errors(error).next().is_some()
}

/// The TLS errors among the causes of an error.
fn tls_errors<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e rustls::Error> {
    iter::successors(Some(error), |&error| error.source()).filter_map(tls_error)
}

fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    match error.downcast_ref::<io::Error>() {
        // Some clients wrap the error more than once.
        Some(error) => tls_error(error.get_ref()?),
        None => error.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_certificate_is_explained_in_words() {
        for (reason, words) in [
            (CertificateError::UnknownIssuer, "pass the certificate of its CA with sslrootcert=FILE"),
            (CertificateError::BadSignature, "pass the certificate of its CA with sslrootcert=FILE"),
            (CertificateError::Expired, "renew it"),
            (CertificateError::NotValidYet, "check the clocks"),
            (CertificateError::NotValidForName, "use a name from the certificate"),
            (CertificateError::Revoked, "is not valid"),
        ] {
            let error = io::Error::other(rustls::Error::InvalidCertificate(reason));
            let explained = rejection(&error, "sslrootcert=FILE").unwrap();
            assert!(explained.contains(words), "{explained}");
        }
        assert_eq!(rejection(&io::Error::other("no route"), "sslrootcert=FILE"), None);
    }
}
