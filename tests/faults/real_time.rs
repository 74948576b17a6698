//! What clients see of the real program in real time, while nodes and servers are killed and frozen: three
//! nodes on PostgreSQL, on JetStream and on object storage, one node on sled and on SQLite.
//!
//! Clients record each request and response with the time at which it began and ended. Afterwards the history
//! must meet the rules in `checks`: creates are in real-time order, pages have no gaps, `Log-Position` shows a
//! client its writes on every node, no node goes back, nothing acknowledged is missing, and nothing else is there.
//!
//! ```text
//! TEST_REAL_TIME_SECONDS=300 tests/run real_time -- --nocapture   # the length of the run on each engine
//! TEST_REAL_TIME_SEED=4711 …                                      # the choices of an earlier run, except for timing
//! tests/crash-suite real_time_postgres                            # one engine, in the long form
//! ```
//!
//! Reading order: `history` (what is recorded), `checks` (the rules), `clients`, `cluster` (nodes, servers and
//! their faults).

mod checks;
mod clients;
mod cluster;
mod history;

use std::{env, thread, time::Duration};

use super::crash::scenario::seed_of_the_moment;
use clients::Clients;
use cluster::{Cluster, Servers};
use harness::{App, Chance, Gateway, NatsCluster, NatsSync, PostgresServer, eventually, number, wait_until};
use history::{History, Operation, Outcome, Request};

const SECONDS: &str = "TEST_REAL_TIME_SECONDS";
const SEED: &str = "TEST_REAL_TIME_SEED";
/// The length of a run, and that of the crash suite.
const SECONDS_SHORT: u64 = 7;
const SECONDS_FULL: u64 = 300;
/// How many nodes share a log.
const NODES: usize = 3;
/// The largest page.
const PAGE: usize = 100;
/// How many pets there are before the first fault.
const PETS_FIRST: u64 = 50;

#[test]
fn three_nodes_on_postgresql_keep_every_rule_in_real_time() {
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let apps = nodes(&postgres.url(&database));
    keep_every_rule("PostgreSQL", apps, Servers::Postgres(postgres));
}

#[test]
fn three_nodes_on_jetstream_keep_every_rule_in_real_time() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(3, NatsSync::Always));
    keep_every_rule("JetStream", nodes(&cluster.url("PETS")), Servers::Nats(cluster));
}

#[test]
fn three_nodes_on_object_storage_keep_every_rule_in_real_time() {
    let gateway = Gateway::start();
    let mut apps = nodes(&gateway.url());
    for app in &mut apps {
        app.run_by(&gateway.wrapper());
    }
    keep_every_rule("object storage", apps, Servers::ObjectStore(gateway));
}

#[test]
fn a_node_on_sled_keeps_every_rule_in_real_time() {
    keep_every_rule("sled", vec![App::stopped_on_engine("sled", &[])], Servers::None);
}

#[test]
fn a_node_on_sqlite_keeps_every_rule_in_real_time() {
    keep_every_rule("SQLite", vec![App::stopped_on_engine("sqlite", &[])], Servers::None);
}

fn nodes(store: &str) -> Vec<App> {
    (0..NODES).map(|_| App::stopped(store, &[])).collect()
}

fn keep_every_rule(engine: &str, apps: Vec<App>, servers: Servers) {
    let seed = number(SEED).unwrap_or_else(seed_of_the_moment);
    println!("{engine}: {SEED}={seed}");
    let mut dice = Chance::new(seed);
    let mut cluster = Cluster::start(apps, servers);
    let clients = Clients::start(&cluster.nodes, &mut dice);
    wait_until("clients have added pets", || cluster.nodes.last_id() >= PETS_FIRST);
    let end = cluster.nodes.now() + length();
    while cluster.nodes.now() < end {
        cluster.disturb(&mut dice);
        thread::sleep(dice.millis(100..=600));
        // JetStream takes up to ten seconds to elect a leader. Some faults happen before that, others when nodes write again.
        let last_id = cluster.nodes.last_id();
        if dice.per_mille(500) {
            let over = || cluster.nodes.now() >= end;
            wait_until("nodes write again", || over() || cluster.nodes.last_id() > last_id);
        }
    }
    let mut history = History { operations: clients.stop(), pets: vec![] };
    look_at_the_end(&cluster, &mut history);
    println!("{engine}: {} faults, {}", cluster.faults.len() / 2, tally(&history));
    let found = checks::violations(&history);
    let faults = cluster.faults.join("\n");
    assert!(found.is_empty(), "{engine} with {SEED}={seed}:\n{}\n{faults}", found.join("\n"));
}

/// Adds a pet on every node, and then lists all pets on every node: without faults, all of that must succeed.
fn look_at_the_end(cluster: &Cluster, history: &mut History) {
    let nodes = &cluster.nodes;
    let mut send = |node: usize, request: &Request| {
        eventually(&format!("node {node} accepts {request:?}"), || {
            let operation = nodes.send(node, request, nodes.newest());
            history.operations.push(operation.clone());
            operation.position().is_some().then_some(operation)
        })
    };
    for node in 0..cluster.apps.len() {
        let name = format!("last of node {node}");
        send(node, &Request::Create { key: Some(name.replace(' ', "-")), name });
    }
    for node in 0..cluster.apps.len() {
        let (mut pets, mut next) = (vec![], Some(0));
        while let Some(after) = next {
            let Outcome::Page { pets: more, next: after, .. } =
                send(node, &Request::List { after, limit: PAGE }).outcome
            else {
                unreachable!("a list that is not rejected is a page")
            };
            pets.extend(more);
            next = after;
        }
        history.pets = pets;
    }
}

fn tally(History { operations, pets }: &History) -> String {
    let count = |is: fn(&Operation) -> bool| operations.iter().filter(|operation| is(operation)).count();
    let acknowledged = count(|operation| matches!(operation.outcome, Outcome::Created { .. }));
    let replayed = count(|operation| matches!(operation.outcome, Outcome::Created { replayed: true, .. }));
    let pages = count(|operation| matches!(operation.outcome, Outcome::Page { .. }));
    let rejected = count(|operation| matches!(operation.outcome, Outcome::Rejected(..)));
    let lost = count(|operation| operation.outcome == Outcome::Lost);
    let longest = operations.iter().map(|operation| operation.ended.saturating_sub(operation.sent)).max();
    format!(
        "{} pets: {acknowledged} creates acknowledged, {replayed} of them replayed, {pages} pages, {rejected} requests \
         rejected, {lost} without a response, longest {longest:?}",
        pets.len()
    )
}

fn length() -> Duration {
    let full = env::var("TEST_CRASH").is_ok_and(|form| form == "full");
    let usual = if full { SECONDS_FULL } else { SECONDS_SHORT };
    Duration::from_secs(number(SECONDS).unwrap_or(usual))
}
