//! Reads records: batches from any replica, or a single record from the leader, which is never behind.

use application::ports::{CommitId, Fault, LogError, Position, ReadBound, StoredRecord};
use async_nats::{
    HeaderMap, Message,
    header::NATS_SEQUENCE,
    jetstream::{ErrorCode, message::StreamMessage, response::Response, stream::RawMessage},
};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time;

use super::{
    COMMIT_ID,
    connection::{NatsConnection, RESPONSE_TIMEOUT},
};

#[derive(Deserialize)]
struct StoredMessage {
    message: RawMessage,
}

impl NatsConnection {
    /// Reads records after `after` from one replica, up to the first gap. The replica may lag behind the leader or not
    /// reply, so the result may be shorter than what the leader has, or empty.
    pub(super) async fn read_from_any_replica(
        &self,
        after: Position,
        bound: ReadBound,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let mut epoch = self.watch()?;
        let inbox = self.client.new_inbox();
        // The client drops messages of a subscription over its buffer.
        let (batch, max_bytes) =
            (bound.records.min(ReadBound::BATCH.records), bound.bytes.min(ReadBound::BATCH.bytes));
        let request = json!({ "seq": after.next().0, "batch": batch, "max_bytes": max_bytes }).to_string();
        let subject = format!("$JS.API.DIRECT.GET.{}", self.address.stream);
        let ended = || Fault::Unreachable.error("the NATS client has ended");
        let mut replies = self.client.subscribe(inbox.clone()).await.map_err(|_| ended())?;
        let sent = self.client.publish_with_reply(subject, inbox, request.into()).await;
        sent.map_err(|_| ended())?;
        let mut found = Vec::new();
        for next in (after.0 + 1..).map(Position).take(batch) {
            let reply = tokio::select! {
                biased;
                reply = time::timeout(RESPONSE_TIMEOUT, replies.next()) => reply.ok().flatten(),
                _ = epoch.changed() => None,
            };
            // A timeout or a gap ends the batch. A status message marks the end of the batch, or reports that there is no
            // record or no responder.
            let reply = reply.filter(|reply| reply.status.is_none() && position(reply) == Some(next));
            let Some(Message { headers, payload: bytes, .. }) = reply else { break };
            match commit_id(headers.as_ref()) {
                None if found.is_empty() => return Err(self.foreign(next)),
                None => break,
                id => found.push(StoredRecord { position: next, id, bytes }),
            }
        }
        Ok(found)
    }

    pub(super) async fn read_from_leader(
        &self,
        position: Position,
    ) -> Result<Option<StoredRecord>, LogError> {
        let Some(raw) = self.message(json!({ "seq": position.0 })).await? else { return Ok(None) };
        let message = StreamMessage::try_from(raw).map_err(|error| {
            Fault::Damaged.error(format!("the message at {position} cannot be read: {error}"))
        })?;
        let id = commit_id(Some(&message.headers)).ok_or_else(|| self.foreign(position))?;
        Ok(Some(StoredRecord { position, id: Some(id), bytes: message.payload }))
    }

    /// Returns the position of the first message after `position`, if there is one.
    pub(super) async fn position_after(&self, position: Position) -> Result<Option<Position>, LogError> {
        let next = json!({ "seq": position.next().0, "next_by_subj": self.address.subject("commits") });
        Ok(self.message(next).await?.map(|message| Position(message.sequence)))
    }

    /// Requests a message from the leader.
    async fn message(&self, request: Value) -> Result<Option<RawMessage>, LogError> {
        match self.ask::<StoredMessage>("STREAM.MSG.GET", &request).await? {
            Response::Ok(reply) => Ok(Some(reply.message)),
            Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
            Response::Err { error } => {
                Err(Fault::Unreachable.error(format!("NATS rejected a read: {error}")))
            }
        }
    }

    fn foreign(&self, position: Position) -> LogError {
        Fault::Foreign.error(format!(
            "the message at position {position} of stream {} was not published by petstore: it has no header {COMMIT_ID}; \
             allow only petstore's user to publish on {}, and move the log to a new stream with petstore log salvage",
            self.address.stream,
            self.address.subject("commits")
        ))
    }
}

/// Returns the commit id in the headers of a message, or `None` if petstore has not published it.
fn commit_id(headers: Option<&HeaderMap>) -> Option<CommitId> {
    headers?.get(COMMIT_ID)?.as_str().parse().ok().map(CommitId)
}

/// The position in the headers of a message that a server has copied from the stream.
pub(super) fn position(message: &Message) -> Option<Position> {
    message.headers.as_ref()?.get(NATS_SEQUENCE)?.as_str().parse().ok().map(Position)
}
