//! A log in memory, for tests and trials.

use application::ports::{
    AppendError, Durability, EventLog, LogError, LogSource, Position, ReadBound, Record, StoredRecord,
    Version,
};
use async_trait::async_trait;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::volatile;

/// Keeps the log in memory. Nothing survives the process.
#[derive(Debug, Default)]
pub struct MemoryLog {
    records: RwLock<Vec<Record>>,
    head: watch::Sender<Position>,
}

#[async_trait]
impl LogSource for MemoryLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let records = self.records.read();
        let start = usize::try_from(after.0).unwrap_or(usize::MAX).min(records.len());
        let stored = records[start..].iter().zip(after.0 + 1..).map(|(record, position)| StoredRecord {
            position: Position(position),
            id: Some(record.id),
            bytes: record.bytes.clone(),
        });
        Ok(bound.take(stored))
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(*self.head.borrow())
    }

    fn changes(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }

    fn durability(&self) -> Durability {
        volatile("memory", "NOT DURABLE: all data is lost when the process ends")
    }
}

#[async_trait]
impl EventLog for MemoryLog {
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        let mut stored = self.records.write();
        let commit = stored.last().map(|record| record.id);
        if expected != (Version { position: Position(stored.len() as u64), commit }) {
            return Err(AppendError::Conflict);
        }
        stored.extend_from_slice(records);
        let head = Position(stored.len() as u64);
        self.head.send_replace(head);
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_memory_log_meets_the_contract() {
        application::log::contract::check_all(async || Arc::new(MemoryLog::default()) as Arc<dyn EventLog>)
            .await;
    }
}
