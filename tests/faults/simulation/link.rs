//! How one run of a node reaches the engine: over a connection that takes time and loses messages. This is
//! the `EventLog` that the node uses.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use application::{
    LogAccess,
    ports::{
        AppendError, Durability, DurabilityLevel, EventLog, LogError, LogSource, Position, ReadBound, Record,
        StoredRecord, Version,
    },
};
use async_trait::async_trait;
use tokio::time;

use super::{
    engine::Engine,
    sending::{self, unreachable},
};

pub(crate) struct Link {
    engine: Arc<Engine>,
    node: usize,
    alive: Arc<AtomicBool>,
}

impl Link {
    pub(crate) fn new(engine: Arc<Engine>, node: usize) -> Arc<Self> {
        if engine.access == LogAccess::Exclusive {
            // The engine is part of the process, so it starts with it.
            engine.start();
        }
        Arc::new(Self { engine, node, alive: Arc::new(AtomicBool::new(true)) })
    }

    /// The process at this end is gone: none of its calls ever returns.
    pub(crate) fn cut(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// The call, unless the process dies.
    async fn reach<T>(&self, call: impl Future<Output = T>) -> T {
        if self.is_alive() {
            let response = call.await;
            if self.is_alive() {
                return response;
            }
        }
        future::pending().await
    }

    /// One way between the node and the engine.
    async fn travel(&self) -> Result<(), LogError> {
        time::sleep(self.engine.delay(self.node)).await;
        let fails = self.engine.draw(|chance, faults| chance.per_mille(faults.read_fails / 2));
        if fails || self.engine.is_away(self.node) { Err(unreachable()) } else { Ok(()) }
    }
}

#[async_trait]
impl LogSource for Link {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        self.reach(async {
            self.travel().await?;
            let found = self.engine.read(self.node, after, bound);
            self.travel().await?;
            Ok(found)
        })
        .await
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.reach(async {
            self.travel().await?;
            let head = self.engine.head(self.node)?;
            self.travel().await?;
            Ok(head)
        })
        .await
    }

    async fn wait_for(&self, position: Position, timeout: Duration) -> Result<(), LogError> {
        self.reach(async {
            self.travel().await?;
            if self.engine.draw(|chance, faults| chance.per_mille(faults.deaf)) {
                time::sleep(timeout).await;
            } else {
                self.engine.beyond(position, timeout).await;
            }
            self.travel().await
        })
        .await
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "simulated",
            level: DurabilityLevel::Volatile,
            promise: "everything stored lasts as long as the run".into(),
            settings: vec![],
        }
    }
}

#[async_trait]
impl EventLog for Link {
    async fn append(&self, expected: Version, record: &Record) -> Result<Position, AppendError> {
        self.reach(async {
            let alive = self.alive.clone();
            sending::send(&self.engine, self.node, alive, expected, record).await
        })
        .await
    }
}
