//! TLS for the listeners: a certificate chain and its private key in two files, which are reloaded when they change.

use std::{
    fmt::Display,
    io,
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
use tokio::{net::TcpStream, task, time};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use x509_cert::{Certificate, der::Decode as _, time::Time};

use crate::{
    log_once::{Change, LogOnce},
    private_files::{is_readable_by_all, read_named},
};

/// Maximum size of each file: far more than a certificate chain needs.
const FILE_MAX: u64 = 1024 * 1024;

const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// How long before its expiry a certificate is reported, and how often.
const EXPIRY_NOTICE: TimeDelta = TimeDelta::days(14);
const EXPIRY_REPORT_INTERVAL: TimeDelta = TimeDelta::days(1);

/// Offered to clients in this order.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The reason why a certificate or its key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The active certificate. It follows its files; while they do not match, the last valid pair stays active.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    active: Mutex<CertificateAndKey>,
    last_reported: Mutex<LastReported>,
}

struct CertificateAndKey {
    /// The contents of both files. They are compared as a whole: modification times are too coarse and can be set.
    contents: [Vec<u8>; 2],
    config: Arc<ServerConfig>,
    begins: DateTime<Utc>,
    expires: DateTime<Utc>,
}

/// When a certificate begins to be valid, and when it expires.
type Validity = (DateTime<Utc>, DateTime<Utc>);

/// The last logged problems, so that none is logged every second.
#[derive(Default)]
struct LastReported {
    error: LogOnce,
    expiry: Option<DateTime<Utc>>,
}

impl Tls {
    /// Loads a certificate chain and its private key, both in PEM.
    pub fn open(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let active = Mutex::new(CertificateAndKey::load(&certificate, &key)?);
        Ok(Self { certificate, key, active, last_reported: Mutex::default() })
    }

    /// The earliest time at which a certificate in the chain expires.
    pub fn expires(&self) -> DateTime<Utc> {
        self.active.lock().expires
    }

    /// Reloads the files at intervals, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        loop {
            time::sleep(RELOAD_INTERVAL).await;
            let tls = self.clone();
            // Fails only when the runtime shuts down.
            let _ = task::spawn_blocking(move || tls.reload()).await;
        }
    }

    /// Activates the pair in the files if it can be used. A pair that is expired or not yet valid does not replace a valid one.
    /// Open connections keep theirs.
    pub fn reload(&self) {
        let mut last_reported = self.last_reported.lock();
        let loaded = CertificateAndKey::load(&self.certificate, &self.key).and_then(|loaded| {
            let now = Utc::now();
            if self.active.lock().is_valid(now) && !loaded.is_valid(now) {
                let reason = format!("it is valid only from {} to {}", loaded.begins, loaded.expires);
                return Err(unusable(&self.certificate, reason));
            }
            Ok(loaded)
        });
        if let Change::Failed(error) = last_reported.error.attempt(loaded.as_ref().err()) {
            tracing::warn!(target: "petstore::http", %error, "TLS certificate not reloaded, the previous one stays active");
        }
        if let Ok(loaded) = loaded {
            let mut active = self.active.lock();
            if active.contents != loaded.contents {
                tracing::info!(target: "petstore::http", expires = %loaded.expires, "TLS certificate reloaded");
                *active = loaded;
                last_reported.expiry = None;
            }
        }
        let (now, expires) = (Utc::now(), self.expires());
        let is_due = last_reported.expiry.is_none_or(|last| now - last >= EXPIRY_REPORT_INTERVAL);
        if is_due && now > expires - EXPIRY_NOTICE {
            let event =
                if now > expires { "TLS certificate expired" } else { "TLS certificate expires soon" };
            tracing::warn!(target: "petstore::http", %expires, file = %self.certificate.display(), "{event}");
            last_reported.expiry = Some(now);
        }
    }

    /// Performs the handshake with the active certificate.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.active.lock().config.clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

impl CertificateAndKey {
    fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let contents = [read(certificate)?, read(key)?];
        if is_readable_by_all(key) {
            return Err(unusable(key, "every user can read this private key; run chmod 600 on it"));
        }
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&contents[0])
            .collect::<Result<_, _>>()
            .map_err(|error| unusable(certificate, not_pem(&contents[0], &error)))?;
        let periods: Option<Vec<_>> = chain.iter().map(period).collect();
        let common = |one: Validity, other: Validity| (one.0.max(other.0), one.1.min(other.1));
        let (begins, expires) =
            periods.and_then(|periods| periods.into_iter().reduce(common)).ok_or_else(|| {
                unusable(certificate, "it must hold a chain of PEM certificates, the service's own first")
            })?;
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
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(Self { contents, config: Arc::new(config), begins, expires })
    }

    fn is_valid(&self, now: DateTime<Utc>) -> bool {
        (self.begins..=self.expires).contains(&now)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    read_named(path, FILE_MAX).map_err(|error| unusable(path, error))
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

fn period(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    let time =
        |time: Time| DateTime::from_timestamp(i64::try_from(time.to_unix_duration().as_secs()).ok()?, 0);
    Some((time(validity.not_before)?, time(validity.not_after)?))
}
