//! `GET /log`: the stored records after a position, one per line, up to the head or as they become durable.
//!
//! The format is that of an export: without `follow`, the last line is a manifest, and a response without one is incomplete.
//! With `follow`, empty lines keep the connection alive. Before a damaged record, the last line names its position.

use std::{convert::Infallible, sync::Arc, time::Duration};

use application::{
    LogPosition,
    log::codec,
    ports::{Fault, LogError, LogSource, Position, ReadBound, wait_for_records},
    transfer::Tally,
};
use axum::{
    body::{Body, Bytes},
    extract::{Query, State},
    http::{HeaderValue, Method, Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use chrono::Utc;
use futures_util::stream;
use serde::{Deserialize, Deserializer, de::Error as _};
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};

use crate::{
    access::{KeyId, Scope},
    http::{
        api::{
            log_position::{LOG_POSITION, log_position},
            number,
        },
        app_state::AppState,
        error::ApiError,
        request_context::Authenticated,
    },
};

/// The longest interval between two lines for a follower; an empty line fills it.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which the log is read without a notification, and the key of a reader is checked: revoking it ends its
/// responses.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The size of a chunk of the response. A client must read each one within its timeout.
const CHUNK_BYTES: usize = 64 * 1024;

/// How much is read at a time, because several clients may hold as much.
const BATCH: ReadBound = ReadBound { records: 1_024, bytes: 256 * 1024 };

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogQuery {
    /// The position after which to begin.
    #[serde(deserialize_with = "plain_position")]
    after: Position,
    follow: bool,
}

fn plain_position<'de, D: Deserializer<'de>>(text: D) -> Result<Position, D::Error> {
    let text = String::deserialize(text)?;
    number::plain(&text).map(Position).ok_or_else(|| D::Error::custom("not a position"))
}

/// `GET /log`, and `HEAD` for the last position alone.
pub(crate) async fn show(
    State(state): State<Arc<AppState>>,
    reader: Authenticated,
    method: Method,
    uri: Uri,
) -> Result<Response, ApiError> {
    reader.require(Scope::Log)?;
    let Query(query) = Query::<LogQuery>::try_from_uri(&uri).map_err(|_| {
        let rule =
            "the query of /log may have after, the position of a commit or 0, and follow, true or false";
        ApiError::invalid(rule)
    })?;
    let store = state.store()?;
    let health = store.health();
    // A log that this node rejects would be taken for its history.
    if let Some(error) = health.reads_stopped().or(health.rejection()) {
        return Err(error.fault.into());
    }
    let log = store.log();
    let head = match log.head().await {
        Ok(head) => head,
        // Writes have stopped, but the open files hold every commit that was acknowledged.
        Err(LogError { fault: Fault::FilesMissing | Fault::Full | Fault::WriteFailed, .. }) => {
            store.log_position().position
        }
        Err(error) => {
            tracing::warn!(target: "petstore::http", %error, "cannot read the log for a client");
            return Err(error.fault.into());
        }
    };
    if query.after > head {
        let rule = format!("after must not be beyond the end of the log, which is at position {head}");
        return Err(ApiError::invalid(rule));
    }
    let body = if method == Method::GET {
        send(&state, reader, log, query, head)?
    } else {
        // Its length is unknown, or axum would add a `Content-Length` of 0.
        Body::from_stream(stream::empty::<Result<Bytes, Infallible>>())
    };
    let mut response = body.into_response();
    let position = log_position(LogPosition { position: head, hash: None });
    let media_type = HeaderValue::from_static("application/jsonl; charset=utf-8");
    response.headers_mut().extend([(CONTENT_TYPE, media_type), (LOG_POSITION, position)]);
    Ok(response)
}

fn send(
    state: &Arc<AppState>,
    reader: Authenticated,
    log: Arc<dyn LogSource>,
    LogQuery { after, follow }: LogQuery,
    head: Position,
) -> Result<Body, ApiError> {
    let permit = state.log_readers.clone().try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::Busy("too many clients are reading the log"))?;
    let (chunks, mut body) = mpsc::channel(1);
    let mut sending = Sending {
        log,
        sent: Tally::between(after, (!follow).then_some(head)),
        chunks,
        ending: state.ending.subscribe(),
    };
    let state = state.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let Authenticated { principal, address: client, .. } = &reader;
        let (key, closed) = (&principal.id, sending.chunks.clone());
        tracing::info!(target: "petstore::http", %key, key_name = principal.name, %client, %after, %head, follow, "log stream started");
        let ended = tokio::select! {
            biased;
            ended = sending.send_all() => ended,
            () = closed.closed() => Err("slow_or_disconnected_client"),
            () = becomes_invalid(&state, key) => Err("invalid_key"),
        };
        let position = sending.sent.position();
        match ended {
            Ok(()) => {
                tracing::info!(target: "petstore::http", %key, %client, %position, "log stream completed");
            }
            Err(reason) => {
                tracing::warn!(target: "petstore::http", %key, %client, %position, reason, "log stream aborted");
            }
        }
    });
    Ok(Body::from_stream(stream::poll_fn(move |context| body.poll_recv(context))))
}

/// Returns when the key is revoked or expires.
async fn becomes_invalid(state: &AppState, key: &KeyId) {
    while state.keys.check(key).is_ok_and(|scopes| scopes.allow(Scope::Log)) {
        time::sleep(CHECK_INTERVAL).await;
    }
}

struct Sending {
    log: Arc<dyn LogSource>,
    /// The records that were sent. A response without an end follows the log until the service stops.
    sent: Tally,
    /// What the connection takes next.
    chunks: mpsc::Sender<Result<Bytes, LogError>>,
    ending: watch::Receiver<bool>,
}

impl Sending {
    /// Fails with the reason why the response ends early.
    async fn send_all(&mut self) -> Result<(), &'static str> {
        let mut last_sent = Instant::now();
        loop {
            // The flag is read before the log, so that every commit acknowledged before the shutdown is sent.
            let is_ending = *self.ending.borrow_and_update();
            let lines = match self.read().await {
                Ok(lines) => lines,
                Err(error) => {
                    tracing::warn!(target: "petstore::http", %error, "cannot read the log for a client");
                    // Without this line, a client would take damage for a lost connection.
                    let is_damaged = error.fault == Fault::Damaged;
                    let last = if is_damaged { Ok(self.sent.damage_notice().into()) } else { Err(error) };
                    self.send(last).await?;
                    return Err("read_error");
                }
            };
            // Copied, so that each chunk releases its memory when it was sent.
            for chunk in lines.chunks(CHUNK_BYTES) {
                self.send(Ok(Bytes::copy_from_slice(chunk))).await?;
            }
            if !lines.is_empty() {
                last_sent = Instant::now();
            } else if self.sent.end.is_some() {
                return self.send(Ok(self.sent.manifest(Utc::now()).into())).await;
            } else if is_ending {
                return Ok(());
            } else if last_sent.elapsed() >= HEARTBEAT_INTERVAL {
                self.send(Ok(Bytes::from_static(b"\n"))).await?;
                last_sent = Instant::now();
            } else {
                let timeout = HEARTBEAT_INTERVAL.saturating_sub(last_sent.elapsed()).min(CHECK_INTERVAL);
                tokio::select! {
                    () = wait_for_records(&*self.log, self.sent.position(), timeout) => {}
                    _ = self.ending.changed() => {}
                }
            }
        }
    }

    /// Reads the next lines. None are left at the end of the response.
    async fn read(&mut self) -> Result<Vec<u8>, LogError> {
        let records = self.sent.read_next(&*self.log, BATCH).await?;
        if let Some(end) = self.sent.end.filter(|end| records.is_empty() && self.sent.position() < *end) {
            let detail = format!("the commits up to position {end} are not visible yet");
            return Err(Fault::Unreachable.error(detail));
        }
        let mut lines = Vec::with_capacity(records.iter().map(|record| record.bytes.len() + 1).sum());
        for record in records {
            let commit = match codec::decode_stored(&record) {
                // The records before it are sent first; the next read starts with this one.
                Err(_) if !lines.is_empty() => break,
                commit => commit?,
            };
            lines.extend_from_slice(&record.bytes);
            lines.push(b'\n');
            self.sent.add_commit(record, &commit);
        }
        Ok(lines)
    }

    /// Sends a chunk when the connection has taken the previous one.
    async fn send(&self, chunk: Result<Bytes, LogError>) -> Result<(), &'static str> {
        self.chunks.send(chunk).await.map_err(|_| "slow_or_disconnected_client")
    }
}
