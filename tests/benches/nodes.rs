//! How many pets 1, 2 and 4 nodes add per second on each engine, how often they get in each other's way, and how
//! long a caller waits. All in one run, beside a yardstick: one node on a memory log.
//!
//! `cargo bench --package tests --bench nodes` starts the servers it needs and prints the table. Machines are noisy:
//! compare rows of one run, not numbers of two.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use adapters::{
    event_log::{memory::MemoryLog, nats::NatsLog, postgres::PostgresLog, sled::SledLog, sqlite::SqliteLog},
    read_model::MemoryReadModel,
    system::SystemClock,
};
use application::{
    CreatePet, KeyId, PetStore, Sharing,
    ports::{AppendError, Durability, EventLog, LogError, Position, ReadBound, Record, StoredRecord},
};
use async_trait::async_trait;
use domain::{CategoryId, NewPet, PetName};
use harness::{NatsCluster, NatsSync, PostgresServer};
use tokio::task::JoinSet;

const CALLERS: usize = 256;
const TIME: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() {
    println!("{CALLERS} callers, {} s a row, in one process on this machine\n", TIME.as_secs());
    println!(
        "{:<22} {:>5} {:>10} {:>7} {:>10} {:>9}",
        "engine", "nodes", "creates/s", "ratio", "conflicts", "p99 ms"
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_path_buf();
    let memory = row("memory", vec![Arc::new(MemoryLog::default())], Sharing::Alone, None).await;
    let base = Some(memory);
    let sled = SledLog::open(path.join("sled")).expect("sled opens");
    row("sled", vec![Arc::new(sled)], Sharing::Alone, base).await;
    let sqlite = SqliteLog::open(path.join("sqlite.db")).expect("SQLite opens");
    row("sqlite", vec![Arc::new(sqlite)], Sharing::Alone, base).await;
    let mut postgres = PostgresServer::start();
    for nodes in [1, 2, 4] {
        let database = postgres.create_database();
        let url = postgres.url(&database);
        let mut logs: Vec<Arc<dyn EventLog>> = Vec::new();
        for _ in 0..nodes {
            logs.push(Arc::new(PostgresLog::open(&url).await.expect("PostgreSQL answers")));
        }
        row("postgres", logs, Sharing::Shared, base).await;
    }
    for (name, sync) in [("nats R3, sync always", NatsSync::Always), ("nats R3, default", NatsSync::Default)]
    {
        let cluster = NatsCluster::start(3, sync).await;
        for nodes in [1, 2, 4] {
            let url = cluster.url(&format!("PETS{nodes}"));
            let mut logs: Vec<Arc<dyn EventLog>> = Vec::new();
            for _ in 0..nodes {
                logs.push(Arc::new(NatsLog::open(&url).await.expect("JetStream answers")));
            }
            row(name, logs, Sharing::Shared, base).await;
        }
    }
}

/// Measures one row of the table and returns its rate.
async fn row(name: &str, logs: Vec<Arc<dyn EventLog>>, sharing: Sharing, yardstick: Option<f64>) -> f64 {
    let counts = Arc::new(Counts::default());
    let mut stores = Vec::new();
    for log in logs {
        let log = Arc::new(Counted { log, counts: counts.clone() });
        let store =
            PetStore::open(log, Arc::<MemoryReadModel>::default(), Arc::new(SystemClock), sharing).await;
        stores.push(Arc::new(store.expect("an empty log opens")));
    }
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let store = stores[caller % stores.len()].clone();
        callers.spawn(async move {
            let mut latencies = Vec::new();
            while begun.elapsed() < TIME {
                let asked = Instant::now();
                store.create(rex()).await.expect("a sound engine takes every pet");
                latencies.push(asked.elapsed());
            }
            latencies
        });
    }
    let mut latencies: Vec<_> = callers.join_all().await.concat();
    let elapsed = begun.elapsed();
    latencies.sort_unstable();
    let rate = ratio(latencies.len() as u64, 1) / elapsed.as_secs_f64();
    let (appends, conflicts) =
        (counts.appends.load(Ordering::Relaxed), counts.conflicts.load(Ordering::Relaxed));
    println!(
        "{name:<22} {:>5} {rate:>10.0} {:>7.2} {:>9.0}% {:>9.1}",
        stores.len(),
        rate / yardstick.unwrap_or(rate),
        100.0 * ratio(conflicts, appends),
        latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e3,
    );
    rate
}

fn rex() -> CreatePet {
    let name = PetName::new("Rex").expect("a plain name");
    let pet = NewPet { name, category_id: CategoryId(7), status: None };
    CreatePet { pet, by: KeyId("bench".into()), request_key: None }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[derive(Default)]
struct Counts {
    appends: AtomicU64,
    conflicts: AtomicU64,
}

/// A log that counts how often an append comes too late.
struct Counted {
    log: Arc<dyn EventLog>,
    counts: Arc<Counts>,
}

#[async_trait]
impl EventLog for Counted {
    async fn append(&self, expected: Position, record: &Record) -> Result<Position, AppendError> {
        let outcome = self.log.append(expected, record).await;
        self.counts.appends.fetch_add(1, Ordering::Relaxed);
        if outcome == Err(AppendError::Conflict) {
            self.counts.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        self.log.read(after, bound).await
    }

    async fn head(&self) -> Result<Position, LogError> {
        self.log.head().await
    }

    async fn wait_beyond(&self, position: Position, patience: Duration) -> Result<(), LogError> {
        self.log.wait_beyond(position, patience).await
    }

    fn durability(&self) -> Durability {
        self.log.durability()
    }
}
