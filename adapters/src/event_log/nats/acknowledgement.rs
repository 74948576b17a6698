//! Interprets JetStream's reply to an append.

use application::ports::{AppendError, Fault, Position};
use async_nats::jetstream::{ErrorCode, publish::PublishAck, response::Response};

/// Returns the outcome of an append after `expected`.
pub(super) fn outcome(stream: &str, expected: Position, reply: &[u8]) -> Result<Position, AppendError> {
    let error = match serde_json::from_slice::<Response<PublishAck>>(reply) {
        Ok(Response::Ok(ack)) if ack.stream == stream && ack.sequence == expected.next().0 => {
            return Ok(expected.next());
        }
        Ok(Response::Ok(ack)) => {
            return Err(AppendError::Closed(Fault::Diverged.error(format!(
                "the commit for position {} was stored at sequence {} of stream {}: another client is publishing to this stream",
                expected.next(),
                ack.sequence,
                ack.stream
            ))));
        }
        Ok(Response::Err { error }) => error,
        Err(error) => {
            return Err(AppendError::Unclear(
                Fault::Unreachable.error(format!("the acknowledgement cannot be parsed: {error}")),
            ));
        }
    };
    let rejected =
        |fault: Fault| AppendError::NotStored(fault.error(format!("NATS rejected a commit: {error}")));
    Err(match error.error_code() {
        ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
            AppendError::Conflict
        }
        // The leader checks these before it proposes anything to the replicas.
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED => rejected(Fault::Full),
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => rejected(Fault::TooLarge),
        // After any other error of the leader, the replicas may still store the commit.
        _ => {
            AppendError::Unclear(Fault::WriteFailed.error(format!("NATS failed to store a commit: {error}")))
        }
    })
}
