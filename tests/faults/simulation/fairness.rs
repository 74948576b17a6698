//! Nodes that all write as fast as they can: does each get its turn, and can another one join?

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use application::{LogAccess, ports::ReadBound};
use harness::{Chance, create};
use tokio::{
    runtime,
    task::JoinSet,
    time::{self, Instant},
};

use super::{
    engine::Engine,
    journal::Journal,
    node::Node,
    plan::{Faults, Plan},
};

/// How long the contest lasts, on the simulated clock.
const CONTEST: Duration = Duration::from_secs(10);
/// How long a node may take to join.
const START_MAX: Duration = Duration::from_secs(10);
/// The number of clients per node, which send without delays.
const CLIENTS: usize = 4;

/// The number of creates that each node acknowledged. Each node joins when the ones before it are at full speed.
pub(crate) fn contest(seed: u64, nodes: usize) -> Vec<u64> {
    simulate(async {
        let mut chance = Chance::new(seed);
        let plan = plan(nodes);
        let engine = Engine::new(&plan, chance.fork(), Arc::new(Journal::new()));
        let mut clients = JoinSet::new();
        let mut shares = Vec::new();
        for index in 0..plan.nodes {
            let node = Node::new(index, engine.clone(), &plan, chance.fork());
            let started = time::timeout(START_MAX, node.start()).await;
            assert_eq!(started, Ok(Ok(())), "a node joins although others write");
            let share = Arc::<AtomicU64>::default();
            for _ in 0..CLIENTS {
                clients.spawn(compete(node.clone(), share.clone()));
            }
            shares.push(share);
        }
        let before: Vec<_> = shares.iter().map(|share| share.load(Ordering::SeqCst)).collect();
        time::sleep(CONTEST).await;
        shares.iter().zip(before).map(|(share, before)| share.load(Ordering::SeqCst) - before).collect()
    })
}

/// How long the first create of a node takes that has just replayed what another node had written.
pub(crate) fn first_create_after_a_replay(seed: u64) -> Duration {
    simulate(async {
        let mut chance = Chance::new(seed);
        let plan = plan(2);
        let engine = Engine::new(&plan, chance.fork(), Arc::new(Journal::new()));
        let [writer, joiner] = [0, 1].map(|index| Node::new(index, engine.clone(), &plan, chance.fork()));
        writer.start().await.expect("the engine has no faults");
        let store = writer.life().expect("it has started");
        for _ in 0..33 {
            create(&store.store, "Rex").await.expect("the engine has no faults");
        }
        joiner.start().await.expect("the engine has no faults");
        let begun = Instant::now();
        create(&joiner.life().expect("it has started").store, "Rex").await.expect("the engine has no faults");
        begun.elapsed()
    })
}

fn plan(nodes: usize) -> Plan {
    Plan {
        access: LogAccess::Shared,
        nodes,
        clients: 0,
        requests_per_client: 0,
        think_max: 0,
        faults: Faults { delay_max: 2, ..Faults::default() },
        outages: vec![],
        restarts: vec![],
        unfit: None,
        distances: vec![0; nodes],
        skews: vec![0; nodes],
        clock_jumps: 0,
        read_max: ReadBound::BATCH.records,
        lie: None,
    }
}

/// Runs on a simulated clock.
fn simulate<T>(run: impl Future<Output = T>) -> T {
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O always starts").block_on(run)
}

async fn compete(node: Arc<Node>, share: Arc<AtomicU64>) {
    while let Some(life) = node.life() {
        match create(&life.store, "Rex").await {
            Ok(_) => drop(share.fetch_add(1, Ordering::SeqCst)),
            // Time must pass, or nothing else happens.
            Err(_) => time::sleep(Duration::from_millis(1)).await,
        }
    }
}
