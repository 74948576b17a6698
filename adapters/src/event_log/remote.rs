//! The log of a running service, read over HTTP from its operators' listener.
//!
//! A read goes on with the response that is open, if it is at the right place, and otherwise sends a new request. A request
//! that goes on after a record begins with that record, so that a service that was replaced meanwhile is noticed.

mod stream;

use std::{path::Path, time::Duration};

use application::ports::{
    Durability, DurabilityLevel, Fault, LogError, LogSource, Position, ReadBound, StoredRecord,
};
use async_trait::async_trait;
use hyper::{Response, body::Incoming};
use serde_json::Value;
use tokio::sync::Mutex;

use self::stream::{RecordStream, StreamMode};
use super::loopback::is_loopback;
use crate::service_client::{self, ClientError, ServiceClient, ServiceUrl};

/// How much of a response that is no log is read.
const REPORT_MAX: usize = 64 * 1024;

/// A log that another process serves. It can be read, and grows as it pleases.
pub struct RemoteLog {
    client: ServiceClient,
    durability: Durability,
    reading: Mutex<Reading>,
}

/// The response that is open, and the last records of the last two reads.
#[derive(Default)]
struct Reading {
    stream: Option<RecordStream>,
    last: Option<StoredRecord>,
    previous: Option<StoredRecord>,
}

impl RemoteLog {
    /// Opens the log of the service at `url` with an API key. For https it trusts the certificates in `ca`, or those that
    /// the system trusts. Over plain HTTP it sends the key to this machine only, unless the URL says `?tls=off`.
    pub async fn open(url: ServiceUrl, ca: Option<&Path>, key: &str) -> Result<Self, LogError> {
        if !url.is_protected() && !is_loopback(url.host()) {
            let detail = format!(
                "{url} is on a network, and plain HTTP would expose the API key and the log there: use https, or add \
                 ?tls=off to the URL if you trust the network"
            );
            return Err(LogError::new(Fault::CannotOpen, detail));
        }
        let wrong = |error| failed(&url, error);
        let client =
            ServiceClient::new(url.clone(), ca).and_then(|client| client.with_key(key)).map_err(wrong)?;
        let log = Self { durability: durability_of(&client).await, client, reading: Mutex::default() };
        log.head().await?;
        Ok(log)
    }

    /// Opens a response that goes on after `after`.
    async fn begin(
        &self,
        after: Position,
        mode: StreamMode,
        last: Option<&StoredRecord>,
    ) -> Result<RecordStream, LogError> {
        let known = last.filter(|last| last.position == after);
        let first = known.map_or(after, |known| Position(known.position.0 - 1));
        let follow = match mode {
            StreamMode::ToHead => "",
            StreamMode::Follow => "&follow=true",
        };
        let response = self.ask("GET", &format!("/log?after={first}{follow}")).await?;
        let mut stream = RecordStream::new(response.into_body(), mode, first);
        if let Some(known) = known
            && stream.first().await.map_err(|error| self.named(&error))?.as_ref() != Some(known)
        {
            let detail = format!(
                "{} no longer holds the commit that was read at position {after}: its log was replaced",
                self.client.url()
            );
            return Err(LogError::new(Fault::Diverged, detail));
        }
        Ok(stream)
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Response<Incoming>, LogError> {
        let url = self.client.url();
        let response = self.client.send(method, path).await.map_err(|error| failed(url, error))?;
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let report = service_client::text(response, REPORT_MAX).await.unwrap_or_default();
        let message = serde_json::from_str::<Value>(&report)
            .ok()
            .and_then(|error| Some(error["message"].as_str()?.escape_debug().to_string()));
        // The response to HEAD has no message.
        let (fault, meaning) = match status {
            401 => (Fault::CannotOpen, "the API key is not valid there"),
            403 => (Fault::CannotOpen, "the API key lacks the scope log; issue a key that has it"),
            404 => (Fault::CannotOpen, "there is no log at this address; use that of the admin listener"),
            429 => (Fault::Unreachable, "the API key is beyond its rate limit; give the key a higher one"),
            500.. => (Fault::Unreachable, "it is not ready"),
            _ => (Fault::CannotOpen, "it refuses the request"),
        };
        let message = message.unwrap_or_else(|| meaning.into());
        Err(LogError::new(fault, format!("{url} answers {status}: {message}")))
    }

    fn named(&self, error: &LogError) -> LogError {
        LogError::new(error.fault, format!("{}: {error}", self.client.url()))
    }
}

/// What the service says about its own log. It is not worth failing for.
async fn durability_of(client: &ServiceClient) -> Durability {
    let report = match client.send("GET", "/readyz").await {
        Ok(response) => service_client::text(response, REPORT_MAX).await.unwrap_or_default(),
        Err(_) => String::new(),
    };
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    let level = match report["durability"]["level"].as_str() {
        Some("replicated") => DurabilityLevel::Replicated,
        Some("synced") => DurabilityLevel::Synced,
        Some("buffered") => DurabilityLevel::Buffered,
        Some(_) | None => DurabilityLevel::Volatile,
    };
    let promise = report["durability"]["promise"].as_str().unwrap_or("the service did not say");
    let engine = report["engine"].as_str().unwrap_or("unknown");
    Durability {
        engine: "http",
        level,
        promise: visible(promise),
        settings: vec![("engine of the service".into(), visible(engine))],
    }
}

/// Another service's words are shown on a terminal, and must not control it.
fn visible(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).collect()
}

#[async_trait]
impl LogSource for RemoteLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let mut reading = self.reading.lock().await;
        let Reading { stream, last, previous } = &mut *reading;
        let open = stream.as_ref().map(RecordStream::position);
        let known = [&*last, &*previous].into_iter().flatten().find(|known| known.position == after.next());
        if let Some(known) = known
            && bound == ReadBound::ONE
            && open == last.as_ref().map(|last| last.position)
        {
            // All records of one response belong to one history: the service sees to that. Another request would end it.
            return Ok(vec![known.clone()]);
        }
        if open != Some(after) {
            *stream = None;
        }
        let mut current = match stream.take() {
            Some(current) => current,
            None => self.begin(after, StreamMode::ToHead, last.as_ref()).await?,
        };
        // An error, and a caller that gives up, leave no half-read response behind.
        let records = current.records(bound).await.map_err(|error| self.named(&error))?;
        // Who looks at one record goes on elsewhere: a follower with a response that has no end.
        if !current.has_ended() && bound != ReadBound::ONE {
            *stream = Some(current);
        }
        if let Some(newest) = records.last() {
            *previous = last.replace(newest.clone());
        }
        Ok(records)
    }

    async fn head(&self) -> Result<Position, LogError> {
        let response = self.ask("HEAD", "/log").await?;
        let position =
            response.headers().get("log-position").and_then(|position| position.to_str().ok()?.parse().ok());
        position.map(Position).ok_or_else(|| {
            let detail = format!("{} sends no position: it is no petstore", self.client.url());
            LogError::new(Fault::CannotOpen, detail)
        })
    }

    async fn wait_for(&self, position: Position, timeout: Duration) -> Result<(), LogError> {
        let mut reading = self.reading.lock().await;
        let Reading { stream, last, .. } = &mut *reading;
        if stream.as_ref().is_none_or(|stream| stream.position() != position) {
            *stream = None;
            *stream = Some(self.begin(position, StreamMode::Follow, last.as_ref()).await?);
        }
        let Some(current) = stream else { return Ok(()) };
        if let Err(error) = current.wait(timeout).await {
            *stream = None;
            return Err(self.named(&error));
        }
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.durability.clone()
    }
}

fn failed(url: &ServiceUrl, error: ClientError) -> LogError {
    match error {
        ClientError::Unreachable(detail) => LogError::new(Fault::Unreachable, format!("{url}: {detail}")),
        ClientError::Unusable(detail) => LogError::new(Fault::CannotOpen, format!("{url}: {detail}")),
    }
}
