//! `GET /log`: the stored records from a position on, one per line, up to the head or as they become durable.
//!
//! The format is that of an export: without `follow`, the last line is a manifest, and a response without one was cut off.
//! With `follow`, an empty line now and then shows that the service is still there.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use application::{
    Bookmark, KeyId,
    ports::{LogError, Position},
    transfer::Feed,
};
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderName, HeaderValue, Method, Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use chrono::Utc;
use futures_util::stream;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{self, Instant},
};

use crate::{
    access::{Authenticator, Scope},
    http::{
        api::{
            log_position::{LOG_POSITION, log_position},
            number,
        },
        error::ApiError,
        middleware::client::{Authenticated, require},
        server::Endless,
        service::Service,
    },
};

/// How many responses may be under way at once: each holds a batch of records, and reads the disk.
pub(crate) const LOG_READERS_MAX: usize = 16;

/// How long a follower hears nothing before it gets an empty line.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How often it is asked whether the key of a reader is still valid: revoking it is to end a response, too.
const KEY_CHECK: Duration = Duration::from_secs(1);

/// How much is handed to the connection at a time. Within the write timeout a peer has to take that much.
const PIECE: usize = 64 * 1024;

const JSON_LINES: (HeaderName, HeaderValue) =
    (CONTENT_TYPE, HeaderValue::from_static("application/jsonl; charset=utf-8"));

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Query {
    after: Position,
    extent: Extent,
}

/// How far a response goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    ToTheHead,
    Endless,
}

/// `GET /log`, and `HEAD` for the last position alone.
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    reader: Authenticated,
    method: Method,
    uri: Uri,
) -> Result<Response, ApiError> {
    require(&reader.principal, Scope::Log)?;
    let query = Query::parse(uri.query().unwrap_or_default())?;
    let head = head_beyond(&service, query.after).await?;
    let body = if method == Method::GET { send(&service, &reader, query, head)? } else { Body::empty() };
    let mut response = body.into_response();
    let position = log_position(Bookmark { position: head, hash: None });
    response.headers_mut().extend([JSON_LINES, (LOG_POSITION, position)]);
    response.extensions_mut().insert(Endless);
    Ok(response)
}

/// The last position of the log, which is not before `after`.
async fn head_beyond(service: &Service, after: Position) -> Result<Position, ApiError> {
    let store = service.store()?;
    if let Some(error) = store.health().reads {
        return Err(error.fault.into());
    }
    let head = store.log_head().await.map_err(|error| {
        tracing::warn!("the log cannot be shown: {error}");
        ApiError::from(error.fault)
    })?;
    if after > head {
        let rule = format!("after must not be beyond the end of the log, which is at position {head}");
        return Err(ApiError::invalid(rule));
    }
    Ok(head)
}

fn send(service: &Service, reader: &Authenticated, query: Query, head: Position) -> Result<Body, ApiError> {
    let Authenticated { principal, address: client } = reader;
    let Query { after, extent } = query;
    let place = service.log_readers.clone().try_acquire_owned();
    let place = place.map_err(|_| ApiError::Busy("too many others are reading the log"))?;
    tracing::info!(key = %principal.id, name = principal.name, %client, %after, %head, ?extent, "sending the log");
    let sending = Sending {
        feed: service.store()?.log_feed(after),
        goal: match extent {
            Extent::ToTheHead => Goal::Head(head),
            Extent::Endless => Goal::News,
        },
        ready: VecDeque::new(),
        heard: Instant::now(),
        leaving: service.leaving(),
        keys: service.keys.clone(),
        key: principal.id.clone(),
        checked: Instant::now(),
        reader: format!("{} ({}) at {client}", principal.id, principal.name.escape_debug()),
        _place: place,
    };
    let pieces = stream::unfold(sending, async |mut sending: Sending| {
        let piece = sending.next().await.transpose()?;
        Some((piece, sending))
    });
    Ok(Body::from_stream(pieces))
}

impl Query {
    fn parse(query: &str) -> Result<Self, ApiError> {
        let (mut after, mut follow) = (None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let twice = match &*name {
                "after" => {
                    let position = number::plain(&value).map(Position);
                    let rule = "after must be the position of a commit, or 0 for everything";
                    after.replace(position.ok_or(ApiError::invalid(rule))?).is_some()
                }
                "follow" => {
                    let extent = match &*value {
                        "true" => Extent::Endless,
                        "false" => Extent::ToTheHead,
                        _ => return Err(ApiError::invalid("follow must be true or false")),
                    };
                    follow.replace(extent).is_some()
                }
                _ => return Err(ApiError::invalid("the only query parameters of /log are after and follow")),
            };
            if twice {
                return Err(ApiError::invalid(format!("{name} must be given once")));
            }
        }
        Ok(Self { after: after.unwrap_or(Position::START), extent: follow.unwrap_or(Extent::ToTheHead) })
    }
}

/// A response under way.
struct Sending {
    feed: Feed,
    goal: Goal,
    /// Read, and not handed to the connection yet.
    ready: VecDeque<Bytes>,
    /// When the peer was sent something for the last time.
    heard: Instant,
    leaving: watch::Receiver<bool>,
    keys: Arc<dyn Authenticator>,
    key: KeyId,
    /// When the key was last known to be valid.
    checked: Instant,
    /// For the log of the service.
    reader: String,
    _place: OwnedSemaphorePermit,
}

/// What a response still has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Everything up to here, then the manifest.
    Head(Position),
    /// Whatever comes, until the service stops.
    News,
    /// Nothing.
    Reached,
}

impl Sending {
    /// The next piece, or `None` at the end. After an error the response is cut off.
    async fn next(&mut self) -> Result<Option<Bytes>, LogError> {
        let piece = loop {
            if self.checked.elapsed() >= KEY_CHECK {
                if !self.keys.is_valid(&self.key) {
                    tracing::warn!(
                        "no longer sending the log to {}: the key is not valid any more",
                        self.reader
                    );
                    return Ok(None);
                }
                self.checked = Instant::now();
            }
            if let Some(piece) = self.ready.pop_front() {
                break piece;
            }
            match self.goal {
                Goal::Head(head) if self.feed.position() < head => {
                    let lines = self.read(head).await?;
                    if lines == 0 {
                        return Err(self.failed(not_shown(head)));
                    }
                }
                Goal::Head(_) => {
                    self.goal = Goal::Reached;
                    break self.feed.manifest(Utc::now()).into();
                }
                Goal::News => {
                    // Asked first: what was acknowledged before the service left is sent.
                    let leaving = *self.leaving.borrow_and_update();
                    if self.read(Position(u64::MAX)).await? > 0 {
                        continue;
                    }
                    if leaving {
                        self.goal = Goal::Reached;
                    } else if self.heard.elapsed() >= HEARTBEAT {
                        break Bytes::from(b"\n".to_vec());
                    } else {
                        self.wait().await?;
                    }
                }
                Goal::Reached => return Ok(None),
            }
        };
        self.heard = Instant::now();
        Ok(Some(piece))
    }

    /// Reads the next lines up to `end`, and tells how many bytes they have.
    async fn read(&mut self, end: Position) -> Result<usize, LogError> {
        let lines = self.feed.lines(end).await.map_err(|error| self.failed(error))?;
        // Pieces of their own, so that each gives back its memory when it was sent.
        self.ready.extend(lines.chunks(PIECE).map(Bytes::copy_from_slice));
        Ok(lines.len())
    }

    async fn wait(&mut self) -> Result<(), LogError> {
        let patience = HEARTBEAT.saturating_sub(self.heard.elapsed()).min(KEY_CHECK);
        let waited = tokio::select! {
            waited = self.feed.wait(patience) => waited,
            _ = self.leaving.changed() => Ok(()),
            // An engine may return earlier than asked, and later.
            () = time::sleep(patience) => Ok(()),
        };
        waited.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: LogError) -> LogError {
        tracing::warn!(
            "the log is cut off for {} at position {}: {error}",
            self.reader,
            self.feed.position()
        );
        error
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let how = match self.goal {
            Goal::Reached => "was sent the log",
            Goal::Head(_) | Goal::News => "left, or read too slowly, and was sent the log",
        };
        tracing::info!("{} {how} up to position {}", self.reader, self.feed.position());
    }
}

fn not_shown(head: Position) -> LogError {
    let detail = format!("the log does not show the commits up to position {head} for now");
    LogError::new(application::ports::Fault::Unreachable, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_says_where_to_begin_and_whether_to_go_on() {
        let query = |after, extent| Ok(Query { after: Position(after), extent });
        for (text, expected) in [
            ("", query(0, Extent::ToTheHead)),
            ("after=0", query(0, Extent::ToTheHead)),
            ("after=17&follow=false", query(17, Extent::ToTheHead)),
            ("follow=true&after=18446744073709551615", query(u64::MAX, Extent::Endless)),
        ] {
            assert_eq!(Query::parse(text), expected, "{text}");
        }
        for text in [
            "after=",
            "after=-1",
            "after=x",
            "after=01",
            "after=18446744073709551616",
            "after=1&after=1",
            "follow=1",
            "follow",
            "follow=true&follow=true",
            "limit=1",
            "After=1",
            "x",
        ] {
            let refused = Query::parse(text).unwrap_err();
            assert_eq!(refused.status(), 400, "{text}");
        }
    }
}
