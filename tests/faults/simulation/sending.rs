//! How an append reaches the engine and how the reply returns, and everything that can happen on the way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use application::{
    LogAccess,
    ports::{AppendError, Fault, LogError, Position, Record, Version},
};
use harness::Chance;
use tokio::{sync::oneshot, time};

use super::{
    engine::Engine,
    plan::{Faults, Lie},
};

/// An append on its way.
struct Sending {
    node: usize,
    alive: Arc<AtomicBool>,
    expected: Version,
    record: Record,
    fate: Fate,
    there: Duration,
    back: Duration,
    /// Whether the sender can tell that the engine was not reached.
    certain: bool,
}

/// What becomes of an append.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Carried,
    RequestLost,
    AnswerLost,
    LandsLate(Duration),
    Rejected,
    Closes { keeps: bool, opens_after: Duration },
}

type Appended = Result<Position, AppendError>;

/// Sends a record, and waits for the outcome.
pub(crate) async fn send(
    engine: &Arc<Engine>,
    node: usize,
    alive: Arc<AtomicBool>,
    expected: Version,
    record: &Record,
) -> Appended {
    let sending = Sending {
        node,
        alive,
        expected,
        record: record.clone(),
        fate: engine.draw(fate),
        there: engine.delay(node),
        back: engine.delay(node),
        certain: engine.draw(|chance, _| chance.per_mille(500)),
    };
    let (tell, output) = oneshot::channel();
    // What was sent goes its way, whatever becomes of the sender.
    tokio::spawn(carry(engine.clone(), sending, tell));
    if engine.lie == Some(Lie::AnswersBeforeItStores) {
        return Ok(expected.position.next());
    }
    output.await.expect("every append ends")
}

/// Takes an append to the engine, and the response back.
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
    // The receiver is gone if the sender was killed.
    let _ = tell.send(lied(&engine, &sending, outcome));
    if let Fate::LandsLate(later) = sending.fate
        && in_doubt
    {
        time::sleep(later).await;
        let _ = engine.store(sending.expected, &sending.record);
    }
}

/// What happens to an append at the engine.
fn arrive(engine: &Arc<Engine>, sending: &Sending) -> Appended {
    let Sending { expected, record, fate, .. } = sending;
    // An engine that is part of the process dies with it. What was sent before a restore may arrive after it.
    if engine.access == LogAccess::Exclusive && !sending.alive.load(Ordering::SeqCst) {
        return Err(unclear());
    }
    match *fate {
        Fate::Carried => engine.store(*expected, record),
        Fate::RequestLost | Fate::LandsLate(_) => Err(unclear()),
        Fate::AnswerLost => {
            let _ = engine.store(*expected, record);
            Err(unclear())
        }
        Fate::Rejected => Err(AppendError::NotStored(Fault::TooLarge.error("not a record for this engine"))),
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

/// What an engine that lies makes of an outcome.
fn lied(engine: &Engine, sending: &Sending, outcome: Appended) -> Appended {
    match (outcome, engine.lie) {
        (Err(AppendError::Unclear(_)), Some(Lie::CallsDoubtsStored)) => Ok(sending.expected.position.next()),
        (Err(AppendError::Unclear(error)), Some(Lie::CallsDoubtsNotStored)) => {
            Err(AppendError::NotStored(error))
        }
        (outcome, _) => outcome,
    }
}

fn report(engine: &Engine, sending: &Sending, outcome: &Appended) {
    let Sending { node, expected, record, fate, .. } = sending;
    engine.output(*node, record, outcome);
    let line = format_args!("node {node} appends after {}: {fate:?}, outcome {outcome:?}", expected.position);
    let event = match outcome {
        Ok(_) | Err(AppendError::NotStored(_)) => "appends",
        Err(AppendError::Conflict) => "conflicts",
        Err(AppendError::Unclear(_)) => "unclear",
        Err(AppendError::Closed(_)) => "closed",
    };
    engine.journal.count(event, line);
}

fn fate(chance: &mut Chance, faults: &Faults) -> Fate {
    if chance.per_mille(faults.request_lost) {
        Fate::RequestLost
    } else if chance.per_mille(faults.answer_lost) {
        Fate::AnswerLost
    } else if chance.per_mille(faults.lands_late) {
        Fate::LandsLate(chance.millis(0..=3_000))
    } else if chance.per_mille(faults.rejected) {
        Fate::Rejected
    } else if chance.per_mille(faults.closes) {
        Fate::Closes { keeps: chance.per_mille(500), opens_after: chance.millis(0..=4_000) }
    } else {
        Fate::Carried
    }
}

fn unclear() -> AppendError {
    AppendError::Unclear(Fault::Unreachable.error("the response was lost"))
}

pub(crate) fn unreachable() -> LogError {
    Fault::Unreachable.error("the engine cannot be reached")
}
