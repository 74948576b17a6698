//! TLS for the listeners: a certificate and its private key in two files, which are loaded again when they change.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::{Mutex, RwLock};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use thiserror::Error;
use tokio::{net::TcpStream, task, time};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use x509_cert::{Certificate, der::Decode as _};

use crate::private_files::{is_readable_by_all, read_named};

/// Far more than a chain of certificates takes.
const FILE_MAX: u64 = 1024 * 1024;
/// How often the files are read.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// How long before the certificate expires the log begins to say so, and how often it repeats it.
const EXPIRY_NOTICE: TimeDelta = TimeDelta::days(14);
const NOTICE_EVERY: TimeDelta = TimeDelta::days(1);
/// What clients can choose from: HTTP/2 first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why a certificate cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The certificate in force. It follows its files; while they do not fit together, the last good pair stays.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    in_force: RwLock<Pair>,
    told: Mutex<Told>,
}

/// A certificate with its key.
struct Pair {
    /// The content of both files. Compared as a whole: modification times are too coarse and can be set.
    content: [Vec<u8>; 2],
    config: Arc<ServerConfig>,
    expires: DateTime<Utc>,
}

/// What the log was told last, so that it is not told the same every second.
#[derive(Default)]
struct Told {
    refusal: Option<TlsError>,
    expiry: Option<DateTime<Utc>>,
}

impl Tls {
    /// Loads a chain of certificates and its private key, both in PEM.
    pub fn open(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let in_force = RwLock::new(Pair::load(&certificate, &key)?);
        Ok(Self { certificate, key, in_force, told: Mutex::default() })
    }

    /// The earliest time at which a certificate in the chain expires.
    pub fn expires(&self) -> DateTime<Utc> {
        self.in_force.read().expires
    }

    /// Reloads the files at intervals, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        loop {
            time::sleep(RELOAD_EVERY).await;
            let tls = self.clone();
            // A runtime that shuts down cancels the work, which is not an error.
            let _ = task::spawn_blocking(move || tls.reload()).await;
        }
    }

    /// Puts the pair that is in the files now in force, if it can be used. New connections get it; open ones go on.
    pub fn reload(&self) {
        let refusal = match Pair::load(&self.certificate, &self.key) {
            Ok(pair) => {
                let mut in_force = self.in_force.write();
                if in_force.content != pair.content {
                    tracing::info!("the new TLS certificate is in force until {}", pair.expires);
                    *in_force = pair;
                    self.told.lock().expiry = None;
                }
                None
            }
            Err(error) => Some(error),
        };
        let mut told = self.told.lock();
        if refusal != told.refusal
            && let Some(refusal) = &refusal
        {
            tracing::warn!("the last good TLS certificate stays in force: {refusal}");
        }
        told.refusal = refusal;
        let (now, expires) = (Utc::now(), self.expires());
        if now > expires - EXPIRY_NOTICE && told.expiry.is_none_or(|last| now - last >= NOTICE_EVERY) {
            let verb = if now > expires { "has expired" } else { "expires" };
            tracing::warn!("the TLS certificate {verb} at {expires}: replace {}", self.certificate.display());
            told.expiry = Some(now);
        }
    }

    /// Makes the TLS connection of a client, with the pair that is in force now.
    pub(super) async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let config = self.in_force.read().config.clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

impl Pair {
    fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let unusable = |path: &Path, why: &dyn std::fmt::Display| {
            TlsError(format!("the TLS file {} cannot be used: {why}", path.display()))
        };
        let read = |path: &Path| read_named(path, FILE_MAX).map_err(|error| unusable(path, &error));
        let content = [read(certificate)?, read(key)?];
        if is_readable_by_all(key) {
            return Err(unusable(key, &"every user can read this private key; run chmod 600 on it"));
        }
        let chain = CertificateDer::pem_slice_iter(&content[0]).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| unusable(certificate, &error))?;
        let expires = chain.iter().map(|certificate| expiry(certificate)).collect::<Option<Vec<_>>>();
        let expires = expires.and_then(|times| times.into_iter().min()).ok_or_else(|| {
            unusable(certificate, &"it must hold a chain of PEM certificates, the service's own first")
        })?;
        let private_key =
            PrivateKeyDer::from_pem_slice(&content[1]).map_err(|error| unusable(key, &error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_no_client_auth()
            .with_single_cert(chain, private_key)
            .map_err(|error| unusable(key, &format!("it does not fit {}: {error}", certificate.display())))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(Self { content, config: Arc::new(config), expires })
    }
}

fn expiry(certificate: &CertificateDer<'_>) -> Option<DateTime<Utc>> {
    let end = Certificate::from_der(certificate).ok()?.tbs_certificate.validity.not_after;
    DateTime::from_timestamp(i64::try_from(end.to_unix_duration().as_secs()).ok()?, 0)
}
