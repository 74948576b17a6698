//! TLS with the levels of trust that PostgreSQL's own clients offer.

use std::{path::Path, sync::Arc};

use application::ports::{Fault, LogError};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::root_certificates;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Any certificate: the connection is encrypted, but the server is not authenticated.
    Any,
    /// Certificates issued by one of the roots, for any name.
    Issuer,
    /// Certificates issued by one of the roots for the host in the URL.
    IssuerAndName,
}

/// Creates a TLS connector with this level of trust, and with the root certificates from `file` or from the system.
pub(super) fn connector(trust: Trust, file: Option<&Path>) -> Result<MakeRustlsConnect, LogError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = match trust {
        Trust::Any => Verifier { provider: provider.clone(), inner: None },
        Trust::Issuer | Trust::IssuerAndName => {
            let roots = root_certificates::load(file).map_err(|why| unusable(&why))?;
            let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
            let verifier = verifier.build().map_err(|error| unusable(&error.to_string()))?;
            Verifier { provider: provider.clone(), inner: Some((verifier, trust)) }
        }
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn unusable(why: &str) -> LogError {
    Fault::CannotOpen.error(format!("{why}; name a PEM file with sslrootcert"))
}

/// Checks a server's certificate as strictly as required. Signatures are always checked.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None` accepts any certificate.
    inner: Option<(Arc<WebPkiServerVerifier>, Trust)>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some((inner, trust)) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        let verified = inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if *trust == Trust::Issuer => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
