//! TLS for the listeners: a certificate chain and its private key in two files, which are reloaded when they change.

use std::{
    fmt::Display,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};
use thiserror::Error;
use tokio::{task, time};
use tokio_rustls::TlsAcceptor;
use x509_cert::{Certificate, der::Decode as _};

use crate::{
    log_once::LogOnce,
    private_files::{is_readable_by_all, read_named},
};

/// Maximum size of each file: far more than a certificate chain needs.
const FILE_MAX: u64 = 1024 * 1024;
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// How long before its expiry a certificate is reported, and how often.
const EXPIRY_NOTICE: TimeDelta = TimeDelta::days(14);
const EXPIRY_REPORT_INTERVAL: TimeDelta = TimeDelta::days(1);

/// The reason why a certificate or its key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The active certificate. It follows its files; while they do not match, the last valid pair stays active.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<State>,
}

struct State {
    active: CertificateAndKey,
    /// The last logged problem, so that it is not logged every second.
    error: LogOnce,
    expiry_reported: Option<DateTime<Utc>>,
}

struct CertificateAndKey {
    /// The contents of both files. They are compared as a whole: modification times are too coarse and can be set.
    contents: [Vec<u8>; 2],
    config: Arc<ServerConfig>,
    /// When all certificates of the chain are valid.
    validity: RangeInclusive<DateTime<Utc>>,
}

impl Tls {
    /// Loads a certificate chain and its private key, both in PEM.
    pub fn open(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let active = CertificateAndKey::load(&certificate, &key)?;
        let state = Mutex::new(State { active, error: LogOnce::default(), expiry_reported: None });
        Ok(Self { certificate, key, state })
    }

    /// The earliest time at which a certificate in the chain expires.
    pub fn expires(&self) -> DateTime<Utc> {
        *self.state.lock().active.validity.end()
    }

    /// Reloads the files at intervals, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        loop {
            time::sleep(RELOAD_INTERVAL).await;
            let tls = self.clone();
            // Fails only when the runtime shuts down.
            let _ = task::spawn_blocking(move || drop(tls.reload())).await;
        }
    }

    /// Activates the pair in the files if it can be used. A pair that is expired or not yet valid does not replace a valid one.
    /// After an error, the previous pair stays active. Open connections keep theirs.
    pub fn reload(&self) -> Result<(), TlsError> {
        let loaded = CertificateAndKey::load(&self.certificate, &self.key);
        let (mut state, now) = (self.state.lock(), Utc::now());
        let State { active, error, expiry_reported } = &mut *state;
        let outcome = loaded.and_then(|loaded| {
            let (begin, end) = (loaded.validity.start(), loaded.validity.end());
            if active.validity.contains(&now) && !loaded.validity.contains(&now) {
                let reason = format!("it is valid only from {begin:?} to {end:?}");
                return Err(unusable(&self.certificate, reason));
            }
            if active.contents != loaded.contents {
                tracing::info!(target: "petstore::http", expires = ?end, "TLS certificate reloaded");
                *active = loaded;
                *expiry_reported = None;
            }
            Ok(())
        });
        if error.is_change(outcome.as_ref().err()) {
            match &outcome {
                Ok(()) => tracing::info!(target: "petstore::http", "TLS certificate usable again"),
                Err(error) => {
                    tracing::warn!(target: "petstore::http", %error, "TLS certificate not reloaded, the previous one stays active");
                }
            }
        }
        let expires = *active.validity.end();
        let is_due = expiry_reported.is_none_or(|last| now - last >= EXPIRY_REPORT_INTERVAL);
        if is_due && now > expires - EXPIRY_NOTICE {
            let event =
                if now > expires { "TLS certificate expired" } else { "TLS certificate expires soon" };
            tracing::warn!(target: "petstore::http", ?expires, file = %self.certificate.display(), "{event}");
            *expiry_reported = Some(now);
        }
        outcome
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.state.lock().active.config.clone())
    }
}

impl CertificateAndKey {
    fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path| read_named(path, FILE_MAX).map_err(|error| unusable(path, error));
        let contents = [read(certificate)?, read(key)?];
        if is_readable_by_all(key) {
            return Err(unusable(key, "every user can read this private key; run chmod 600 on it"));
        }
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&contents[0])
            .collect::<Result<_, _>>()
            .map_err(|error| unusable(certificate, not_pem(&contents[0], &error)))?;
        let periods = chain.iter().map(validity);
        let common = periods.reduce(|a, b| Some((a?.0.max(b?.0), a?.1.min(b?.1)))).flatten();
        let Some((begin, end)) = common else {
            let rule = "it must hold a chain of PEM certificates, the service's own first";
            return Err(unusable(certificate, rule));
        };
        let private_key = PrivateKeyDer::from_pem_slice(&contents[1])
            .map_err(|error| unusable(key, not_pem(&contents[1], &error)))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_no_client_auth()
            .with_single_cert(chain, private_key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    unusable(key, format!("it does not belong to the certificate {}", certificate.display()))
                }
                rustls::Error::General(_) => {
                    unusable(key, "it must be an ECDSA or Ed25519 key, or an RSA key with at least 2048 bits")
                }
                error => unusable(key, error),
            })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { contents, config: Arc::new(config), validity: begin..=end })
    }
}

fn unusable(path: &Path, reason: impl Display) -> TlsError {
    TlsError(format!("the TLS file {} cannot be used: {reason}", path.display()))
}

/// The reason why a file cannot be parsed. The library prints markers as lists of bytes.
fn not_pem(content: &[u8], error: &pem::Error) -> String {
    if content.windows(9).any(|word| word == b"ENCRYPTED") {
        return "the private key is encrypted; store it without a passphrase".into();
    }
    match error {
        pem::Error::MissingSectionEnd { .. } => "its END line is missing".into(),
        pem::Error::NoItemsFound => "it contains no PEM private key".into(),
        error => format!("it is not valid PEM: {error}"),
    }
}

/// When a certificate begins to be valid, and when it expires.
fn validity(certificate: &CertificateDer<'_>) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
    let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    Some((validity.not_before.to_system_time().into(), validity.not_after.to_system_time().into()))
}
