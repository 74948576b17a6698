//! 1, 2 and 4 nodes in this process, without HTTP. Every node has the same number of clients.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use adapters::event_log::{nats::NatsLog, postgres::PostgresLog};
use application::{LogAccess, PetStore, ports::EventLog};
use harness::{NatsCluster, NatsSync, PostgresServer, create, open_node};
use tokio::task::JoinSet;

use crate::{median, ratio};

const NODES: [usize; 3] = [1, 2, 4];
const CLIENTS_PER_NODE: usize = 64;
const ROUND: Duration = Duration::from_secs(3);

pub(crate) async fn run(rounds: usize) {
    let mut postgres = PostgresServer::start();
    let synced = NatsCluster::start(3, NatsSync::Always).await;
    let unsynced = NatsCluster::start(3, NatsSync::Default).await;
    let mut rows = Vec::new();
    for nodes in NODES {
        let database = postgres.create_database();
        let url = postgres.url(&database);
        let logs =
            open_all(nodes, async || PostgresLog::open(&url).await.expect("PostgreSQL responds")).await;
        rows.push(Row::new("PostgreSQL", logs).await);
    }
    for (name, cluster) in [("JetStream, sync always", &synced), ("JetStream, default sync", &unsynced)] {
        for nodes in NODES {
            let url = cluster.url(&format!("PETS{nodes}"));
            let logs = open_all(nodes, async || NatsLog::open(&url).await.expect("JetStream responds")).await;
            rows.push(Row::new(name, logs).await);
        }
    }
    println!(
        "{CLIENTS_PER_NODE} clients per node; servers, nodes and clients on this machine, without HTTP; medians of \
         {rounds} interleaved rounds of {} s\n",
        ROUND.as_secs()
    );
    for _ in 0..rounds {
        for row in &mut rows {
            row.measure().await;
        }
    }
    println!(
        "| engine | nodes | creates/s | / one node | conflicting appends | p50, ms | p99, ms | / one node |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for engine in rows.chunks(NODES.len()) {
        for row in engine {
            println!(
                "| {} | {} | {:.0} | {:.2} | {:.0} % | {:.1} | {:.1} | {:.1} |",
                row.name,
                row.stores.len(),
                median(&row.rates),
                median(&row.rates) / median(&engine[0].rates),
                100.0 * median(&row.conflicts),
                median(&row.p50s),
                median(&row.p99s),
                median(&row.p99s) / median(&engine[0].p99s),
            );
        }
    }
}

async fn open_all<L: EventLog + 'static>(nodes: usize, open: impl AsyncFn() -> L) -> Vec<Arc<dyn EventLog>> {
    let mut logs: Vec<Arc<dyn EventLog>> = Vec::new();
    for _ in 0..nodes {
        logs.push(Arc::new(open().await));
    }
    logs
}

/// Some nodes on one log, and what was measured of them in each round.
struct Row {
    name: &'static str,
    stores: Vec<Arc<PetStore>>,
    rates: Vec<f64>,
    conflicts: Vec<f64>,
    p50s: Vec<f64>,
    p99s: Vec<f64>,
}

impl Row {
    async fn new(name: &'static str, logs: Vec<Arc<dyn EventLog>>) -> Self {
        let mut stores = Vec::new();
        for log in logs {
            stores.push(Arc::new(open_node(log, LogAccess::Shared).await));
        }
        Self { name, stores, rates: vec![], conflicts: vec![], p50s: vec![], p99s: vec![] }
    }

    /// How many appends and conflicts there were so far.
    fn counts(&self) -> [u64; 2] {
        let statistics = || self.stores.iter().map(|store| store.statistics());
        let appends = statistics().flat_map(|of| of.append_micros.buckets().map(|(_, count)| count));
        [appends.sum(), statistics().map(|of| of.conflicts.load(Ordering::Relaxed)).sum()]
    }

    async fn measure(&mut self) {
        let before = self.counts();
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for store in self.stores.iter().cycle().take(CLIENTS_PER_NODE * self.stores.len()) {
            let store = store.clone();
            clients.spawn(async move {
                let mut latencies = Vec::new();
                while begun.elapsed() < ROUND {
                    let asked = Instant::now();
                    create(&store, "Rex").await.expect("a sound engine takes every pet");
                    latencies.push(asked.elapsed());
                }
                latencies
            });
        }
        let mut latencies: Vec<Duration> = clients.join_all().await.concat();
        let elapsed = begun.elapsed();
        latencies.sort_unstable();
        let [appends, conflicts] = self.counts();
        self.rates.push(ratio(latencies.len() as u64, 1) / elapsed.as_secs_f64());
        self.conflicts.push(ratio(conflicts - before[1], appends - before[0]));
        let percentile = |percent: usize| latencies[latencies.len() * percent / 100].as_secs_f64() * 1e3;
        self.p50s.push(percentile(50));
        self.p99s.push(percentile(99));
    }
}
