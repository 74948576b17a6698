//! `GET /log`: the stored records after a position, one per line, up to the head or as they become durable.
//!
//! The format is that of an export: without `follow`, the last line is a manifest, and a response without one is incomplete.
//! With `follow`, empty lines keep the connection alive. Before a damaged record, the last line names its position.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

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
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

use crate::{
    access::Scope,
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

/// The interval at which the key of a reader is checked: revoking it ends its responses.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
    let Authenticated { principal, address: client, .. } = &reader;
    tracing::info!(target: "petstore::http", key = %principal.id, key_name = principal.name, %client, %after, %head, follow, "log stream started");
    let sending = Sending {
        log,
        sent: Tally::after(after),
        goal: if follow { Goal::Follow } else { Goal::Head(head) },
        ready: VecDeque::new(),
        last_sent: Instant::now(),
        ending: state.ending.subscribe(),
        key_checked: Instant::now(),
        state: state.clone(),
        reader,
        _permit: permit,
    };
    let chunks = stream::try_unfold(sending, async |mut sending: Sending| {
        let chunk = sending.next().await.or_else(|error| {
            tracing::warn!(target: "petstore::http", %error, "cannot read the log for a client");
            sending.goal = Goal::Aborted("read_error");
            // Without this line, a client would take damage for a lost connection.
            let is_damaged = error.fault == Fault::Damaged;
            if is_damaged { Ok(Some(sending.sent.damage_notice().into())) } else { Err(error) }
        })?;
        sending.last_sent = Instant::now();
        Ok::<_, LogError>(chunk.map(|chunk| (chunk, sending)))
    });
    Ok(Body::from_stream(chunks))
}

struct Sending {
    state: Arc<AppState>,
    reader: Authenticated,
    log: Arc<dyn LogSource>,
    /// The records that were sent, or are ready to be.
    sent: Tally,
    goal: Goal,
    /// Chunks that the connection has not taken yet.
    ready: VecDeque<Bytes>,
    last_sent: Instant,
    ending: watch::Receiver<bool>,
    key_checked: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The rest of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Records up to this position, then the manifest.
    Head(Position),
    /// Records as they are appended, until the service stops.
    Follow,
    Reached,
    /// Holds the reason.
    Aborted(&'static str),
}

impl Sending {
    /// The next chunk, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, LogError> {
        loop {
            if self.key_checked.elapsed() >= KEY_CHECK_INTERVAL {
                let scopes = self.state.keys.check(&self.reader.principal.id);
                if !scopes.is_ok_and(|scopes| scopes.allow(Scope::Log)) {
                    self.goal = Goal::Aborted("invalid_key");
                    return Ok(None);
                }
                self.key_checked = Instant::now();
            }
            if let Some(chunk) = self.ready.pop_front() {
                return Ok(Some(chunk));
            }
            match self.goal {
                Goal::Head(head) if self.sent.position() < head => {
                    if self.read(head).await? == 0 {
                        let detail = format!("the commits up to position {head} are not visible yet");
                        return Err(Fault::Unreachable.error(detail));
                    }
                }
                Goal::Head(_) => {
                    self.goal = Goal::Reached;
                    return Ok(Some(self.sent.manifest(Utc::now()).into()));
                }
                Goal::Follow => {
                    // The flag is read before the log, so that every commit acknowledged before the shutdown is sent.
                    let ending = *self.ending.borrow_and_update();
                    if self.read(Position(u64::MAX)).await? > 0 {
                        continue;
                    }
                    if ending {
                        self.goal = Goal::Reached;
                    } else if self.last_sent.elapsed() >= HEARTBEAT_INTERVAL {
                        return Ok(Some(Bytes::from(b"\n".to_vec())));
                    } else {
                        self.wait().await;
                    }
                }
                Goal::Reached | Goal::Aborted(_) => return Ok(None),
            }
        }
    }

    /// Reads the next lines up to `end`, and returns their size in bytes.
    async fn read(&mut self, end: Position) -> Result<usize, LogError> {
        let mut records = self.sent.read_next(&*self.log, BATCH).await?;
        records.retain(|record| record.position <= end);
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
        // Copied, so that each chunk releases its memory when it was sent.
        self.ready.extend(lines.chunks(CHUNK_BYTES).map(Bytes::copy_from_slice));
        Ok(lines.len())
    }

    async fn wait(&mut self) {
        let timeout = HEARTBEAT_INTERVAL.saturating_sub(self.last_sent.elapsed()).min(KEY_CHECK_INTERVAL);
        tokio::select! {
            () = wait_for_records(&*self.log, self.sent.position(), timeout) => {}
            _ = self.ending.changed() => {}
        }
    }
}

/// Logs how the response ended.
impl Drop for Sending {
    fn drop(&mut self) {
        let Authenticated { principal, address: client, .. } = &self.reader;
        let (key, position) = (&principal.id, self.sent.position());
        let reason = match self.goal {
            Goal::Reached => {
                tracing::info!(target: "petstore::http", %key, %client, %position, "log stream completed");
                return;
            }
            Goal::Head(_) | Goal::Follow => "slow_or_disconnected_client",
            Goal::Aborted(reason) => reason,
        };
        tracing::warn!(target: "petstore::http", %key, %client, %position, reason, "log stream aborted");
    }
}
