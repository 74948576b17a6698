//! How one run of a node reaches the engine: over a connection that takes time and loses messages. This is
//! the `EventLog` that the node uses.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use application::{
    LogAccess,
    ports::{
        AppendError, Durability, DurabilityLevel, EventLog, LogError, LogSource, Position, ReadBound, Record,
        StoredRecord, Version,
    },
};
use async_trait::async_trait;
use tokio::{sync::watch, task::JoinSet, time};

use super::{
    engine::Engine,
    sending::{self, unreachable},
};

pub(crate) struct Link {
    engine: Arc<Engine>,
    node: usize,
    alive: Arc<AtomicBool>,
    announced: watch::Sender<Position>,
    /// Receives notifications. Ends with the link.
    _listening: JoinSet<()>,
}

impl Link {
    pub(crate) fn new(engine: Arc<Engine>, node: usize) -> Arc<Self> {
        if engine.access == LogAccess::Exclusive {
            // The engine is part of the process, so it starts with it.
            engine.start();
        }
        let announced = watch::Sender::new(Position::START);
        let mut listening = JoinSet::new();
        listening.spawn(listen(engine.clone(), node, announced.clone()));
        Arc::new(Self {
            engine,
            node,
            alive: Arc::new(AtomicBool::new(true)),
            announced,
            _listening: listening,
        })
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

/// Passes on the notifications of the engine, which arrive late or get lost.
async fn listen(engine: Arc<Engine>, node: usize, announced: watch::Sender<Position>) {
    let mut known = Position::START;
    loop {
        known = engine.beyond(known).await;
        time::sleep(engine.delay(node)).await;
        let is_deaf = engine.draw(|chance, faults| chance.per_mille(faults.deaf));
        if !is_deaf && !engine.is_away(node) {
            announced.send_replace(known);
        }
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

    fn changes(&self) -> watch::Receiver<Position> {
        self.announced.subscribe()
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
    async fn append(&self, expected: Version, records: &[Record]) -> Result<Position, AppendError> {
        self.reach(async {
            let alive = self.alive.clone();
            sending::send(&self.engine, self.node, alive, expected, &records[0]).await
        })
        .await
    }
}
