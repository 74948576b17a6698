//! A log in memory, for tests and trials.

use std::time::Duration;

use application::ports::{
    AppendError, Durability, EventLog, LogError, LogSource, Position, ReadBound, Record, StoredRecord,
    Version,
};
use async_trait::async_trait;
use parking_lot::RwLock;
use tokio::{sync::watch, time};

use super::{check_size, volatile};

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
        let mut room = bound.bytes;
        let mut found = Vec::new();
        for (record, before) in records[start..].iter().zip(after.0..).take(bound.records) {
            let Record { id, bytes } = record.clone();
            found.push(StoredRecord { position: Position(before + 1), id: Some(id), bytes });
            room = room.saturating_sub(record.bytes.len());
            if room == 0 {
                break;
            }
        }
        Ok(found)
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(*self.head.borrow())
    }

    async fn wait_for(&self, position: Position, timeout: Duration) -> Result<(), LogError> {
        let mut heads = self.head.subscribe();
        // A timeout is not an error: the wait is only a hint.
        let _ = time::timeout(timeout, heads.wait_for(|head| *head > position)).await;
        Ok(())
    }

    fn durability(&self) -> Durability {
        volatile("memory", "NOT DURABLE: all data is lost when the process ends")
    }
}

#[async_trait]
impl EventLog for MemoryLog {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        check_size(record, self.record_limit())?;
        let mut records = self.records.write();
        let commit = records.last().map(|record| record.id);
        if expected != (Version { position: Position(records.len() as u64), commit }) {
            return Err(AppendError::Conflict);
        }
        records.push(record.clone());
        self.head.send_replace(expected.position.next());
        Ok(expected.position.next())
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
