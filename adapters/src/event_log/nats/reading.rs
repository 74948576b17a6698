//! Reads records: batches from any replica, or a single record from the leader, which is never behind.

use application::ports::{CommitId, Fault, LogError, Position, ReadBound, StoredRecord};
use async_nats::{
    HeaderMap, Message,
    header::NATS_SEQUENCE,
    jetstream::{ErrorCode, message::StreamMessage, response::Response, stream::RawMessage},
};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use tokio::time;

use super::{
    COMMIT_ID,
    connection::{NatsConnection, RESPONSE_TIMEOUT},
    stream::commits_subject,
};

/// The maximum number of bytes per request, so that a server does not buffer more for a slow reader.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Well below what the client buffers for a subscription before it drops messages.
const RECORDS_MAX: usize = 16_384;

#[derive(Deserialize)]
struct StoredMessage {
    message: RawMessage,
}

/// Reads records after `after` from one replica, or the next one from the leader. Empty if the leader has none.
pub(super) async fn records(
    connection: &NatsConnection,
    stream: &str,
    after: Position,
    bound: ReadBound,
) -> Result<Vec<StoredRecord>, LogError> {
    let mut found = vec![];
    if bound.records > 1 {
        found = from_any_replica(connection, stream, after, bound).await?;
    }
    if found.is_empty() {
        found.extend(from_leader(connection, stream, after.next()).await?);
    }
    Ok(found)
}

/// Reads records after `after` from one replica, up to the first gap. The replica may lag behind the leader or not
/// reply, so the result may be shorter than what the leader has, or empty.
async fn from_any_replica(
    connection: &NatsConnection,
    stream: &str,
    after: Position,
    bound: ReadBound,
) -> Result<Vec<StoredRecord>, LogError> {
    let mut epoch = connection.watch()?;
    let client = &connection.client;
    let inbox = client.new_inbox();
    let (batch, max_bytes) = (bound.records.min(RECORDS_MAX), bound.bytes.min(BYTES_MAX));
    let request = json!({ "seq": after.next().0, "batch": batch, "max_bytes": max_bytes }).to_string();
    let failed =
        |error: &dyn std::error::Error| Fault::Unreachable.error(format!("no connection to read: {error}"));
    let mut replies = client.subscribe(inbox.clone()).await.map_err(|error| failed(&error))?;
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    client.publish_with_reply(subject, inbox, request.into()).await.map_err(|error| failed(&error))?;
    let mut found = Vec::new();
    let mut last = after;
    loop {
        let reply = tokio::select! {
            biased;
            reply = time::timeout(RESPONSE_TIMEOUT, replies.next()) => reply.ok().flatten(),
            _ = epoch.changed() => None,
        };
        // A timeout or a gap ends the batch. A status message marks the end of the batch, or reports that there is no
        // record or no responder.
        let Some(reply) = reply.filter(|reply| reply.status.is_none()) else { break };
        if sequence(&reply) != Some(last.next().0) {
            break;
        }
        last = last.next();
        match commit_id(reply.headers.as_ref()) {
            None if found.is_empty() => return Err(foreign(stream, last)),
            None => break,
            id => found.push(StoredRecord { position: last, id, bytes: reply.payload }),
        }
        if found.len() == bound.records {
            break;
        }
    }
    Ok(found)
}

pub(super) async fn from_leader(
    connection: &NatsConnection,
    stream: &str,
    position: Position,
) -> Result<Option<StoredRecord>, LogError> {
    match connection.ask::<StoredMessage>("STREAM.MSG.GET", stream, &json!({ "seq": position.0 })).await? {
        Response::Ok(reply) => {
            let message = StreamMessage::try_from(reply.message).map_err(|error| {
                Fault::Damaged.error(format!("the message at {position} cannot be read: {error}"))
            })?;
            let id = commit_id(Some(&message.headers)).ok_or_else(|| foreign(stream, position))?;
            Ok(Some(StoredRecord { position, id: Some(id), bytes: message.payload }))
        }
        Response::Err { error } => not_found(stream, &error),
    }
}

/// Returns the position of the first message after `position`, if there is one.
pub(super) async fn position_after(
    connection: &NatsConnection,
    stream: &str,
    position: Position,
) -> Result<Option<Position>, LogError> {
    let next = json!({ "seq": position.next().0, "next_by_subj": commits_subject(stream) });
    match connection.ask::<StoredMessage>("STREAM.MSG.GET", stream, &next).await? {
        Response::Ok(reply) => Ok(Some(Position(reply.message.sequence))),
        Response::Err { error } => not_found(stream, &error),
    }
}

fn not_found<T>(stream: &str, error: &async_nats::jetstream::Error) -> Result<Option<T>, LogError> {
    if error.error_code() == ErrorCode::NO_MESSAGE_FOUND {
        return Ok(None);
    }
    Err(Fault::Unreachable.error(format!("NATS rejected a read of stream {stream}: {error}")))
}

/// Returns the commit id in the headers of a message, or `None` if petstore has not published it.
fn commit_id(headers: Option<&HeaderMap>) -> Option<CommitId> {
    headers?.get(COMMIT_ID)?.as_str().parse().ok().map(CommitId)
}

fn foreign(stream: &str, position: Position) -> LogError {
    Fault::Foreign.error(format!(
        "the message at position {position} of stream {stream} was not published by petstore: it has no header \
         {COMMIT_ID}; allow only petstore's user to publish on {}, and move the log to a new stream with petstore log \
         salvage",
        commits_subject(stream)
    ))
}

pub(super) fn sequence(message: &Message) -> Option<u64> {
    message.headers.as_ref()?.get(NATS_SEQUENCE)?.as_str().parse().ok()
}
