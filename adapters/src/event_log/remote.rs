//! The log of a running service, read over HTTP from its admin listener.
//!
//! A read continues the open response, if that is at the right position, and otherwise sends a new request. Copies,
//! exports and checks compare the hash chain, which shows whether both are of the same log.

mod stream;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use application::ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord};
use async_trait::async_trait;
use hyper::{Response, StatusCode, body::Incoming};
use serde_json::Value;
use tokio::{
    sync::{Mutex, watch},
    time::{self, Instant},
};

use self::stream::{RecordStream, StreamMode};
use super::volatile;
use crate::{
    loopback::is_loopback,
    service_client::{self, ServiceClient, ServiceUrl},
};

/// The maximum size of an error response, in bytes. Its message becomes part of a sentence.
const REPORT_MAX: usize = 4 * 1024;
/// How long a service may take to accept a new key. It reads its key file within two seconds.
const NEW_KEY_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a rejected key is sent again. The service may limit the rate of wrong keys.
const NEW_KEY_INTERVAL: Duration = Duration::from_millis(500);

/// A log that another process serves and may append to.
pub struct RemoteLog {
    client: ServiceClient,
    /// From this time on, a rejected key is wrong. Before it, the key may be new.
    key_is_old: Instant,
    /// The open response.
    stream: Mutex<Option<RecordStream>>,
    /// Whether a reader waits for new records, so that responses have no end.
    is_followed: AtomicBool,
    /// The position of the last record that was received, or [`Position::MAX`] without an open response.
    changes: watch::Sender<Position>,
}

impl RemoteLog {
    /// Opens the log of the service at `url` with an API key. For https it trusts the certificates in `ca`, or those of
    /// the system; `ca_option` is how to pass them. Over plain HTTP it sends the key only to this machine, unless the URL has `?tls=off`.
    pub async fn open(
        url: ServiceUrl,
        ca: Option<&Path>,
        ca_option: &'static str,
        key: &str,
    ) -> Result<Self, LogError> {
        if !url.is_protected() && !is_loopback(url.host()) {
            return Err(Fault::CannotOpen.error(format!(
                "{url} is on a network, and plain HTTP would expose the API key and the log there: use https, or add \
                 ?tls=off to the URL if you trust the network"
            )));
        }
        let client = ServiceClient::new(url.clone(), ca, ca_option).and_then(|client| client.with_key(key));
        let log = Self {
            client: client.map_err(|error| named(&url, &error))?,
            key_is_old: Instant::now() + NEW_KEY_TIMEOUT,
            stream: Mutex::default(),
            is_followed: AtomicBool::new(false),
            changes: watch::Sender::new(Position::MAX),
        };
        log.head().await?;
        Ok(log)
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Response<Incoming>, LogError> {
        let url = self.client.url();
        let response = loop {
            let response = self.client.send(method, path).await.map_err(|error| named(url, &error))?;
            if response.status() != StatusCode::UNAUTHORIZED || Instant::now() > self.key_is_old {
                break response;
            }
            time::sleep(NEW_KEY_INTERVAL).await;
        };
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let report = service_client::text(response, REPORT_MAX).await.unwrap_or_default();
        let message = serde_json::from_str::<Value>(&report)
            .ok()
            .and_then(|error| Some(error["message"].as_str()?.escape_debug().to_string()));
        // A response to HEAD has no body.
        let (fault, meaning) = match status {
            401 => (Fault::CannotOpen, "the service rejected the API key; its service log has the reason"),
            403 => (Fault::CannotOpen, "the API key lacks the log scope; issue a key that has it"),
            404 => (Fault::CannotOpen, "no log at this address; use the address of the admin listener"),
            429 => (
                Fault::Unreachable,
                "the API key has exceeded its rate limit; issue a key with a higher limit",
            ),
            500.. => (Fault::Unreachable, "the service is not ready; check its service log"),
            _ => (Fault::CannotOpen, "the service rejected the request"),
        };
        let message = message.unwrap_or_else(|| meaning.into());
        Err(fault.error(format!("{url} responded with {status}: {message}")))
    }
}

#[async_trait]
impl LogSource for RemoteLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let mut open = self.stream.lock().await;
        // An open response at another position is dropped.
        let continued = open.take().filter(|stream| stream.position == after);
        let mut stream = if let Some(stream) = continued {
            stream
        } else {
            let follow = self.is_followed.load(Relaxed) && bound != ReadBound::ONE;
            let mode = if follow { StreamMode::Follow } else { StreamMode::ToHead };
            let response = self.ask("GET", &format!("/log?after={after}&follow={follow}")).await?;
            RecordStream::new(response.into_body(), mode, after, self.changes.clone())
        };
        // After an error or a cancelled read, there is no open response, so one that was read in part is never continued.
        let read = stream.records(bound).await;
        let records = read.map_err(|error| named(self.client.url(), &error))?;
        let has_ended = records.is_empty() && stream.mode == StreamMode::ToHead;
        // A read of a single record does not continue.
        if has_ended || bound == ReadBound::ONE {
            self.changes.send_replace(Position::MAX);
        } else {
            *open = Some(stream);
        }
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let response = self.ask("HEAD", "/log").await?;
        let position =
            response.headers().get("log-position").and_then(|position| position.to_str().ok()?.parse().ok());
        position.map(Position).filter(|position| *position <= Position::MAX).ok_or_else(|| {
            let detail =
                format!("{} is not a petstore service: its response has no Log-Position", self.client.url());
            Fault::CannotOpen.error(detail)
        })
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.is_followed.store(true, Relaxed);
        self.changes.subscribe()
    }

    fn durability(&self) -> Durability {
        volatile("http", "not known here; /readyz of the service reports it")
    }
}

/// Adds the URL to an error.
fn named(url: &ServiceUrl, error: &LogError) -> LogError {
    error.fault.error(format!("{url}: {error}"))
}
