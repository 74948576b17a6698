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
use harness::create;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

/// Callers of each store at once.
const CALLERS: usize = 8;
/// Longer than a cluster needs to find itself again, even on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(2);
/// How often to look again for something that must happen soon.
const INTERVAL: Duration = Duration::from_millis(10);

/// Callers of several stores at once, each with one request after another.
pub(super) struct Load {
    stores: Vec<Arc<PetStore>>,
    callers: JoinSet<Vec<(PetId, String)>>,
    acknowledged: Arc<watch::Sender<Tally>>,
    stop: Arc<AtomicBool>,
}

/// How often a store said yes, and the longest time in which none did.
#[derive(Debug, Clone)]
struct Tally {
    count: usize,
    last: Instant,
    stall: Duration,
    /// How often each store said yes, and how often it could not reach its log.
    accepted: Vec<usize>,
    rejected: Vec<usize>,
}

impl Load {
    /// Starts asking.
    pub(super) fn start(stores: Vec<PetStore>) -> Self {
        let stores: Vec<_> = stores.into_iter().map(Arc::new).collect();
        let none = vec![0; stores.len()];
        let tally = Tally {
            count: 0,
            last: Instant::now(),
            stall: Duration::ZERO,
            accepted: none.clone(),
            rejected: none,
        };
        let acknowledged = Arc::new(watch::Sender::new(tally));
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for (index, store) in stores.iter().enumerate() {
            for caller in 0..CALLERS {
                let (store, acknowledged, stop) = (store.clone(), acknowledged.clone(), stop.clone());
                callers.spawn(ask((index, caller), store, acknowledged, stop));
            }
        }
        Self { stores, callers, acknowledged, stop }
    }

    /// Returns after so many more pets were acknowledged.
    pub(super) async fn continues(&self, more: usize) {
        let reached = |before: &Tally, now: &Tally| now.count >= before.count + more;
        self.reaches("the stores accept pets again, without a restart", reached).await;
    }

    /// Returns after every store has acknowledged so many more pets.
    pub(super) async fn continues_everywhere(&self, more: usize) {
        let reached = |before: &Tally, now: &Tally| {
            now.accepted.iter().zip(&before.accepted).all(|(now, before)| *now >= before + more)
        };
        self.reaches("every store accepts pets again, without a restart", reached).await;
    }

    /// Waits until the counts meet a condition, which compares them with those of now.
    async fn reaches(&self, expectation: &str, is_reached: impl Fn(&Tally, &Tally) -> bool) {
        let mut tallies = self.acknowledged.subscribe();
        let before = tallies.borrow().clone();
        let reached = time::timeout(TIMEOUT, tallies.wait_for(|now| is_reached(&before, now))).await;
        reached.expect(expectation).expect("the load continues");
    }

    /// Returns after every store rejected a pet because it cannot reach its log, and says so to admin.
    pub(super) async fn is_rejected_everywhere(&self) {
        let reached = |before: &Tally, now: &Tally| {
            now.rejected.iter().zip(&before.rejected).all(|(now, before)| now > before)
        };
        self.reaches("stores without a log reject", reached).await;
        for store in &self.stores {
            let says_so = async {
                while store.health().not_ready().is_none() {
                    time::sleep(INTERVAL).await;
                }
            };
            time::timeout(TIMEOUT, says_so).await.expect("a store without its log says so");
        }
    }

    /// Stops asking, then holds what was acknowledged against what every store and the log itself show.
    pub(super) async fn holds_in(self, log: &dyn EventLog, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let output: Vec<_> = self.callers.join_all().await.into_iter().flatten().collect();
        let tally = self.acknowledged.borrow().clone();
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
        let present = output.iter().filter(|(id, name)| logged.get(id) == Some(name)).count();
        println!(
            "{what}: acknowledged {}, present {present}, in {} commits, {} pets in all; longest stall {:.1} s",
            output.len(),
            summary.position(),
            logged.len(),
            tally.stall.as_secs_f64(),
        );
        assert_eq!(present, output.len(), "every acknowledged pet is in the log under its id");
        for store in &self.stores {
            shows_everything(store, summary.position(), &logged).await;
        }
    }
}

/// Waits until the store has caught up, then compares all its pets with the log.
async fn shows_everything(store: &PetStore, last: Position, logged: &HashMap<PetId, String>) {
    store.caught_up(last, TIMEOUT).await.expect("every store sees everything");
    assert_eq!(store.count(), logged.len(), "a store shows as many pets as the log holds");
    for (id, name) in logged {
        let shown = harness::pet(store, *id).expect("a store that caught up can be read");
        assert_eq!(shown.map(|pet| pet.details.name.as_str().to_owned()).as_ref(), Some(name));
    }
}

async fn ask(
    (index, caller): (usize, usize),
    store: Arc<PetStore>,
    acknowledged: Arc<watch::Sender<Tally>>,
    stop: Arc<AtomicBool>,
) -> Vec<(PetId, String)> {
    let mut output = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{index}-{caller}-{number}");
        match create(&store, &name).await {
            Ok(created) => {
                output.push((created.id, name));
                acknowledged.send_modify(|tally| {
                    tally.count += 1;
                    tally.accepted[index] += 1;
                    tally.stall = tally.stall.max(tally.last.elapsed());
                    tally.last = Instant::now();
                });
            }
            // The outcome is unclear: the pet may appear later.
            Err(WriteError::Unavailable(Fault::Unreachable)) => {
                acknowledged.send_modify(|tally| tally.rejected[index] += 1);
                time::sleep(INTERVAL).await;
            }
            Err(error) => panic!("a create succeeds or finds its log unreachable: {error:?}"),
        }
    }
    output
}
