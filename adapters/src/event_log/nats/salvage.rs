//! Reads the remaining messages of a stream that has lost messages, or whose settings drop some.

use application::ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord};
use async_trait::async_trait;

use super::{connection::NatsConnection, reading};
use crate::event_log::volatile;

/// The readable messages of a stream.
pub struct SalvagedStream {
    pub(super) stream: String,
    pub(super) connection: NatsConnection,
    pub(super) last: Position,
}

#[async_trait]
impl LogSource for SalvagedStream {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        if after >= self.last {
            return Ok(vec![]);
        }
        let mut found = reading::records(&self.connection, &self.stream, after, bound).await?;
        found.retain(|record| record.position <= self.last);
        if found.is_empty() {
            return Err(Fault::Damaged.error(format!("the commit at position {} is missing", after.next())));
        }
        Ok(found)
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.last)
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        let next = reading::position_after(&self.connection, &self.stream, damaged).await?;
        Ok(next.unwrap_or(damaged.next()))
    }

    fn durability(&self) -> Durability {
        volatile("salvage", "read-only: the remaining messages of a damaged stream")
    }
}
