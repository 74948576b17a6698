//! A log with a bug on purpose: see `application::planted`.

use std::{sync::Arc, time::Duration};

use application::{
    planted,
    ports::{
        AppendError, Durability, EventLog, LogError, Position, ReadBound, Record, StoredRecord, Version,
    },
};
use async_trait::async_trait;
use tokio::{sync::Mutex, task::JoinHandle};

/// Plants the bug that the environment asks for, if it is one of a log.
pub fn plant(log: Arc<dyn EventLog>) -> Arc<dyn EventLog> {
    if planted::is("answer-before-sync") {
        return Arc::new(AnswersBeforeSync { log, pending: Mutex::default() });
    }
    log
}

/// Says that a record is stored as soon as it has heard of it.
struct AnswersBeforeSync {
    log: Arc<dyn EventLog>,
    pending: Mutex<Option<JoinHandle<()>>>,
}

impl AnswersBeforeSync {
    /// Waits for what was promised before, so that the bug shows only when nobody can wait any more.
    async fn settle(&self) {
        if let Some(earlier) = self.pending.lock().await.take() {
            let _ = earlier.await;
        }
    }
}

#[async_trait]
impl EventLog for AnswersBeforeSync {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        self.settle().await;
        let (log, record) = (self.log.clone(), record.clone());
        *self.pending.lock().await = Some(tokio::spawn(async move {
            let _ = log.append(expected, &record).await;
        }));
        Ok(expected.position.next())
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        self.settle().await;
        self.log.read(after, bound).await
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.settle().await;
        self.log.head().await
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        self.log.wait_beyond(position, patience).await
    }

    fn durability(&self) -> Durability {
        self.log.durability()
    }
}
