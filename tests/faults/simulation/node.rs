//! A node of the simulation: the real `PetStore` on the real read model, with a wrong clock, through several
//! restarts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use adapters::read_model::MemoryReadModel;
use application::{
    Options, PetStore, Version,
    log::commit::NodeId,
    ports::{Clock, LogIdentity},
};
use chrono::{DateTime, TimeDelta, Utc};
use harness::Chance;
use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::{self, Instant},
};

use super::{
    engine::Engine,
    journal::Tick,
    link::Link,
    plan::{DAY, End, Plan},
};

/// How long a start may fail before the faults end, and again after that: longer than all outages of a run together.
const STARTING_MAX: Duration = Duration::from_mins(3);
/// How long the supervisor of a node waits before it starts it again.
const START_DELAY: Duration = Duration::from_millis(200);
/// How long a node may take to end in order, once no request is in flight: two slow calls to the engine.
const CLOSING_MAX: Duration = Duration::from_secs(20);

pub(crate) struct Node {
    pub(crate) index: usize,
    engine: Arc<Engine>,
    clock: Arc<WrongClock>,
    life: Mutex<Option<Arc<Life>>>,
    lives: AtomicUsize,
    /// What the node has recorded about its log.
    known: Mutex<Option<LogIdentity>>,
    /// The life that ends while the next one starts. Both update the same record.
    leaving: Mutex<Option<Arc<Life>>>,
    /// Held while the node is between two lives.
    restarting: AsyncMutex<()>,
}

/// A node from a start to its end.
pub(crate) struct Life {
    pub(crate) number: usize,
    /// When the node began to read the log.
    pub(crate) begun: Tick,
    pub(crate) store: PetStore,
    link: Arc<Link>,
    killed: Notify,
}

impl Life {
    /// Returns when the node is killed.
    pub(crate) async fn killed(&self) {
        let killed = self.killed.notified();
        if self.link.is_alive() {
            killed.await;
        }
    }
}

impl Node {
    pub(crate) fn new(index: usize, engine: Arc<Engine>, plan: &Plan, chance: Chance) -> Arc<Self> {
        let clock = Arc::new(WrongClock {
            start: Instant::now(),
            jumps: plan.clock_jumps,
            state: Mutex::new((TimeDelta::seconds(plan.skews[index]), chance)),
        });
        Arc::new(Self {
            index,
            engine,
            clock,
            life: Mutex::default(),
            lives: AtomicUsize::new(0),
            known: Mutex::default(),
            leaving: Mutex::default(),
            restarting: AsyncMutex::default(),
        })
    }

    /// The node as it can be reached now; `None` while it is down.
    pub(crate) fn life(&self) -> Option<Arc<Life>> {
        self.life.lock().clone()
    }

    /// Opens the store, again and again until the engine lets it. If faults keep it from reading the whole log for too long,
    /// they end. Fails if it does not start without them either.
    pub(crate) async fn start(&self) -> Result<(), String> {
        let mut give_up = Instant::now() + STARTING_MAX;
        let mut has_faults = true;
        let number = self.lives.fetch_add(1, Ordering::SeqCst) + 1;
        let begun = self.engine.journal.note(format_args!("node {} starts life {number}", self.index));
        if let Some(leaving) = self.leaving.lock().take() {
            self.record(&leaving);
        }
        let link = Link::new(self.engine.clone(), self.index);
        let store = loop {
            let read_model = Box::<MemoryReadModel>::default();
            let known = *self.known.lock();
            let options = Options { known, node: self.id(number), ..Options::new(self.engine.access) };
            let opening = PetStore::open(link.clone(), read_model, self.clock.clone(), options);
            match opening.await {
                Ok(store) => break store,
                Err(_) if Instant::now() < give_up => time::sleep(START_DELAY).await,
                Err(_) if has_faults => {
                    // A start may need hundreds of calls. If each of them may fail, it takes long and is no broken promise.
                    let reason = format_args!("the start of node {} takes too long", self.index);
                    self.engine.journal.count("slow starts", reason);
                    self.engine.heal();
                    (give_up, has_faults) = (Instant::now() + STARTING_MAX, false);
                }
                Err(error) => return Err(format!("node {} does not start: {error}", self.index)),
            }
        };
        self.engine.journal.note(format_args!("node {} serves", self.index));
        let life = Life { number, begun, store, link, killed: Notify::new() };
        *self.life.lock() = Some(Arc::new(life));
        Ok(())
    }

    /// The id of one life: as if random, and the same in every run of the seed.
    fn id(&self, life: usize) -> NodeId {
        NodeId((((life << 8) + self.index) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Records what a life has applied.
    fn record(&self, life: &Life) {
        let Version { position, commit } = life.store.version();
        if let (Some(first), Some(newest)) = (life.store.log_id(), commit) {
            let known = LogIdentity { first, position, newest };
            *self.known.lock() = Some(known);
        }
    }

    /// Ends the node's life and starts the next one.
    pub(crate) async fn restart(&self, end: End, down: Duration) -> Result<(), String> {
        let _restarting = self.restarting.lock().await;
        self.engine.journal.count("restarts", format_args!("node {} restarts", self.index));
        self.end(end).await?;
        time::sleep(down).await;
        self.start().await
    }

    /// Ends the node's life. Fails if it should have ended in order and does not come to an end.
    pub(crate) async fn end(&self, end: End) -> Result<(), String> {
        let Some(life) = self.life.lock().take() else {
            return Ok(());
        };
        self.engine.journal.note(format_args!("node {} is {end:?}", self.index));
        self.record(&life);
        match end {
            End::Killed => {
                life.link.cut();
                life.killed.notify_waiters();
                Ok(())
            }
            End::Replaced => {
                *self.leaving.lock() = Some(life);
                Ok(())
            }
            End::Closed => {
                let closing = time::timeout(CLOSING_MAX, life.store.close()).await;
                closing.map_err(|_| format!("node {} does not end when it is closed", self.index))
            }
        }
    }
}

/// A clock that is off from the start, by days perhaps, and may jump.
struct WrongClock {
    start: Instant,
    /// Per mille of the looks at it.
    jumps: u64,
    state: Mutex<(TimeDelta, Chance)>,
}

impl Clock for WrongClock {
    fn now(&self) -> DateTime<Utc> {
        let (skew, chance) = &mut *self.state.lock();
        if chance.per_mille(self.jumps) {
            *skew = TimeDelta::seconds(chance.pick(&[-300, -60, 0, 60, 300, 2 * DAY, -2 * DAY]));
        }
        let elapsed = TimeDelta::from_std(self.start.elapsed()).expect("a run takes minutes");
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + *skew + elapsed
    }
}
