//! How one life of a node reaches the engine: over a way that takes time and loses things. This is the `EventLog`
//! that the node holds.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use application::{
    Sharing,
    ports::{
        AppendError, Durability, DurabilityLevel, EventLog, Fault, LogError, Position, ReadBound, Record,
        StoredRecord,
    },
};
use async_trait::async_trait;
use tokio::{sync::oneshot, time};

use super::{
    chance::Chance,
    engine::{Engine, Fate},
    journal::Tally,
    plan::Faults,
};

pub(crate) struct Link {
    engine: Arc<Engine>,
    node: usize,
    alive: Arc<AtomicBool>,
}

/// An append on its way.
struct Sending {
    node: usize,
    alive: Arc<AtomicBool>,
    /// The age of the log it was meant for.
    age: usize,
    expected: Position,
    record: Record,
    fate: Fate,
    there: Duration,
    back: Duration,
    /// Whether the sender can tell that the engine was not reached.
    certain: bool,
}

type Appended = Result<Position, AppendError>;

impl Link {
    pub(crate) fn new(engine: Arc<Engine>, node: usize) -> Arc<Self> {
        if engine.sharing == Sharing::Alone {
            // The engine is part of the process, so it starts with it.
            engine.open();
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

    /// The call, unless the process dies or the way to the engine breaks.
    async fn reach<T, E>(&self, call: impl Future<Output = Result<T, E>>, broken: E) -> Result<T, E> {
        if self.is_alive() {
            let answer = self.engine.unless_broken(call).await;
            if self.is_alive() {
                return answer.unwrap_or(Err(broken));
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
impl EventLog for Link {
    async fn append(&self, expected: Position, record: &Record) -> Appended {
        self.reach(
            async {
                let sending = Sending {
                    node: self.node,
                    alive: self.alive.clone(),
                    age: self.engine.age(),
                    expected,
                    record: record.clone(),
                    fate: self.engine.draw(fate),
                    there: self.engine.delay(self.node),
                    back: self.engine.delay(self.node),
                    certain: self.engine.draw(|chance, _| chance.per_mille(500)),
                };
                let (tell, told) = oneshot::channel();
                // What was sent goes its way, whatever becomes of the sender.
                tokio::spawn(carry(self.engine.clone(), sending, tell));
                told.await.expect("every append ends")
            },
            unclear(),
        )
        .await
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        self.reach(
            async {
                self.travel().await?;
                let found = self.engine.read(self.node, after, bound);
                self.travel().await?;
                Ok(found)
            },
            unreachable(),
        )
        .await
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.reach(
            async {
                self.travel().await?;
                let head = self.engine.head(self.node)?;
                self.travel().await?;
                Ok(head)
            },
            unreachable(),
        )
        .await
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        self.reach(
            async {
                self.travel().await?;
                if self.engine.draw(|chance, faults| chance.per_mille(faults.deaf)) {
                    time::sleep(patience).await;
                } else {
                    self.engine.beyond(position, patience).await;
                }
                self.travel().await
            },
            unreachable(),
        )
        .await
    }

    fn durability(&self) -> Durability {
        Durability {
            engine: "simulated",
            level: DurabilityLevel::Volatile,
            promise: "everything stored lasts as long as the run".into(),
            facts: vec![],
        }
    }
}

/// Takes an append to the engine and the answer back.
async fn carry(engine: Arc<Engine>, sending: Sending, tell: oneshot::Sender<Appended>) {
    time::sleep(sending.there).await;
    let outcome = if engine.is_away(sending.node) {
        Err(if sending.certain { AppendError::NotStored(unreachable()) } else { unclear() })
    } else {
        arrive(&engine, &sending)
    };
    time::sleep(sending.back).await;
    let answer_lost = engine.is_away(sending.node) && !matches!(outcome, Err(AppendError::NotStored(_)));
    let outcome = if answer_lost { Err(unclear()) } else { outcome };
    report(&engine, &sending, &outcome);
    let in_doubt = matches!(outcome, Err(AppendError::Unclear(_)));
    // Nobody listens if the sender was killed.
    let _ = tell.send(outcome);
    if let Fate::LandsLate(later) = sending.fate
        && in_doubt
    {
        time::sleep(later).await;
        if sending.age == engine.age() {
            let _ = engine.store(sending.expected, &sending.record);
        }
    }
}

/// What happens to an append at the engine.
fn arrive(engine: &Arc<Engine>, sending: &Sending) -> Appended {
    let Sending { expected, record, fate, .. } = sending;
    // An engine that is part of the process dies with it, and a broken way carries nothing.
    let died = engine.sharing == Sharing::Alone && !sending.alive.load(Ordering::SeqCst);
    if died || sending.age != engine.age() {
        return Err(unclear());
    }
    match *fate {
        Fate::Carried => engine.store(*expected, record),
        Fate::RequestLost | Fate::LandsLate(_) => Err(unclear()),
        Fate::AnswerLost => {
            let _ = engine.store(*expected, record);
            Err(unclear())
        }
        Fate::Refused => {
            Err(AppendError::NotStored(LogError::new(Fault::TooLarge, "not a record for this engine")))
        }
        Fate::Closes { keeps, opens_after } => {
            let outcome = engine.close(*expected, record, keeps);
            if matches!(outcome, Err(AppendError::Closed(_))) {
                let engine = engine.clone();
                tokio::spawn(async move {
                    time::sleep(opens_after).await;
                    engine.open();
                });
            }
            outcome
        }
    }
}

fn report(engine: &Engine, sending: &Sending, outcome: &Appended) {
    let Sending { node, expected, record, fate, .. } = sending;
    let count = |tally: &mut Tally| match outcome {
        Ok(_) | Err(AppendError::NotStored(_)) => {}
        Err(AppendError::Conflict) => tally.conflicts += 1,
        Err(AppendError::Unclear(_)) => tally.unclear += 1,
        Err(AppendError::Closed(_)) => tally.closed += 1,
    };
    engine.told(*node, record, outcome);
    engine
        .journal
        .count(count, format_args!("node {node} appends after {expected}: {fate:?}, told {outcome:?}"));
}

fn fate(chance: &mut Chance, faults: &Faults) -> Fate {
    if chance.per_mille(faults.request_lost) {
        Fate::RequestLost
    } else if chance.per_mille(faults.answer_lost) {
        Fate::AnswerLost
    } else if chance.per_mille(faults.lands_late) {
        Fate::LandsLate(chance.millis(0..=3_000))
    } else if chance.per_mille(faults.refused) {
        Fate::Refused
    } else if chance.per_mille(faults.closes) {
        Fate::Closes { keeps: chance.per_mille(500), opens_after: chance.millis(0..=4_000) }
    } else {
        Fate::Carried
    }
}

fn unclear() -> AppendError {
    AppendError::Unclear(LogError::new(Fault::Unreachable, "the answer was lost"))
}

fn unreachable() -> LogError {
    LogError::new(Fault::Unreachable, "the engine cannot be reached")
}
