//! Clients that send creates without delays, and the replies that they got.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use application::{
    PetStore, WriteError,
    ports::{EventLog, Fault, LogError, Position},
    transfer,
};
use domain::PetId;
use harness::{create, eventually_ok, owner};
use tokio::{sync::watch, task::JoinSet, time};

/// Callers of each store at once.
const CALLERS: usize = 8;
/// Longer than a cluster needs to find itself again, even on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(2);
/// How long a caller waits after a rejection.
const INTERVAL: Duration = Duration::from_millis(10);

/// Callers of several stores at once, each with one request after another.
pub(super) struct Load {
    stores: Vec<Arc<PetStore>>,
    callers: JoinSet<Vec<(PetId, String)>>,
    counts: Arc<watch::Sender<Vec<Counts>>>,
    stop: Arc<AtomicBool>,
}

/// How often one store said yes, and how often it could not reach its log.
#[derive(Debug, Clone, Default)]
struct Counts {
    accepted: usize,
    rejected: usize,
}

impl Load {
    /// Starts asking.
    pub(super) fn start(stores: Vec<Arc<PetStore>>) -> Self {
        let counts = Arc::new(watch::Sender::new(vec![Counts::default(); stores.len()]));
        let stop = Arc::<AtomicBool>::default();
        let mut callers = JoinSet::new();
        for (index, store) in stores.iter().enumerate() {
            for caller in 0..CALLERS {
                callers.spawn(ask((index, caller), store.clone(), counts.clone(), stop.clone()));
            }
        }
        Self { stores, callers, counts, stop }
    }

    /// Returns after the stores together have acknowledged so many more pets.
    pub(super) async fn continues(&self, more: usize) {
        let sum = |counts: &[Counts]| counts.iter().map(|of| of.accepted).sum::<usize>();
        self.reaches("pets are accepted", |before, now| sum(now) >= sum(before) + more).await;
    }

    /// Returns after every store has acknowledged so many more pets.
    pub(super) async fn continues_everywhere(&self, more: usize) {
        let reached = |before: &[Counts], now: &[Counts]| {
            now.iter().zip(before).all(|(now, before)| now.accepted >= before.accepted + more)
        };
        self.reaches("every store accepts pets", reached).await;
    }

    /// Returns after every store rejected a pet because it cannot reach its log, and is not ready.
    pub(super) async fn is_rejected_everywhere(&self) {
        let reached = |before: &[Counts], now: &[Counts]| {
            now.iter().zip(before).all(|(now, before)| now.rejected > before.rejected)
        };
        self.reaches("stores without a log reject", reached).await;
        for store in &self.stores {
            eventually_ok("a store without its log says so", async || {
                store.health().not_ready().is_some().then_some(()).ok_or(())
            })
            .await;
        }
    }

    /// Waits until the counts meet a condition, which compares them with those of now.
    async fn reaches(&self, expectation: &str, is_reached: impl Fn(&[Counts], &[Counts]) -> bool) {
        let mut counts = self.counts.subscribe();
        let before = counts.borrow().clone();
        let reached = time::timeout(TIMEOUT, counts.wait_for(|now| is_reached(&before, now))).await;
        reached.expect(expectation).expect("the load continues");
    }

    /// Stops asking, then holds what was acknowledged against what every store and the log itself show.
    pub(super) async fn holds_in(self, log: &dyn EventLog, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = self.callers.join_all().await.concat();
        let mut logged = HashMap::new();
        let mut summary = transfer::Tally::default();
        let walked = transfer::walk::<LogError>(log, &mut summary, async |_, commit| {
            for pet in commit.entries.iter().filter_map(|entry| entry.event.added()) {
                let twice = logged.insert(pet.id, pet.details.name.as_str().to_owned());
                assert_eq!(twice, None, "the id {:?} is given once", pet.id);
            }
            Ok(())
        });
        walked.await.expect("the log is sound from the first commit to the last");
        println!("{what}: {} pets acknowledged, {} stored", acknowledged.len(), logged.len());
        for (id, name) in &acknowledged {
            assert_eq!(logged.get(id), Some(name), "an acknowledged pet is in the log under its id");
        }
        for store in &self.stores {
            shows_everything(store, summary.position(), &logged).await;
        }
    }
}

/// Waits until the store has caught up and is ready, then compares all its pets with the log.
async fn shows_everything(store: &PetStore, last: Position, logged: &HashMap<PetId, String>) {
    store.caught_up(last, &owner(), TIMEOUT).await.expect("every store sees everything");
    assert_eq!(store.count(), logged.len(), "a store shows as many pets as the log holds");
    for (id, name) in logged {
        let (shown, _) = store.get(*id).expect("a store that caught up can be read");
        assert_eq!(shown.map(|pet| pet.details.name.as_str().to_owned()).as_ref(), Some(name));
    }
    eventually_ok("the store is ready", async || {
        store.health().not_ready().map_or(Ok(()), |error| Err(error.clone()))
    })
    .await;
}

async fn ask(
    (index, caller): (usize, usize),
    store: Arc<PetStore>,
    counts: Arc<watch::Sender<Vec<Counts>>>,
    stop: Arc<AtomicBool>,
) -> Vec<(PetId, String)> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{index}-{caller}-{number}");
        match create(&store, &name).await {
            Ok(created) => {
                acknowledged.push((created.id, name));
                counts.send_modify(|counts| counts[index].accepted += 1);
            }
            // The outcome is unclear: the pet may appear later.
            Err(WriteError::Unavailable(Fault::Unreachable)) => {
                counts.send_modify(|counts| counts[index].rejected += 1);
                time::sleep(INTERVAL).await;
            }
            Err(error) => panic!("a create succeeds or finds its log unreachable: {error:?}"),
        }
    }
    acknowledged
}
