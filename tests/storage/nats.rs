//! The log in NATS JetStream, on one real server and on a cluster of three.

mod access;
mod crash;
mod durability;
mod foreign;
mod payload;
mod quota;
mod rejection;
mod settings;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use adapters::event_log::nats::NatsLog;
use application::{LogAccess, PetStore, log::contract, ports::EventLog};
use harness::{CutProxy, NatsCluster, NatsSync, all_pets, create, eventually_ok, open_node, petstore};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_the_contract() {
    let cluster = NatsCluster::start(3, NatsSync::Always).await;
    let streams = AtomicUsize::new(0);
    let url = || cluster.url(&format!("S{}", streams.fetch_add(1, Ordering::Relaxed)));
    contract::check_all(async || open(&url()).await).await;
    let shared = async || {
        let url = url();
        let mut logs = Vec::new();
        for _ in 0..4 {
            logs.push(open(&url).await);
        }
        logs
    };
    contract::check_writers(shared).await;
    contract::a_reopened_log_holds_everything(async || open(&cluster.url("AGAIN")).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_adds_exactly_one_pet() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let proxy = CutProxy::start(cluster.servers[0].address()).await;
    let store = open_store(&format!("nats://{}/PETS", proxy.address())).await;
    proxy.lose_the_response_to("Rex");
    let created = create(&store, "Rex").await.expect("the store finds out that Rex is stored");
    assert_eq!(proxy.lost_responses(), 1, "the acknowledgement was lost");
    assert_eq!(created.id.get(), 1);
    assert_eq!(all_pets(&store), Ok(vec![created]), "there is one Rex");
    let log = open(&cluster.url("PETS")).await;
    assert_eq!(log.head().await.map(|head| head.0), Ok(1), "the log holds one commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn inspecting_a_missing_log_does_not_create_it() {
    let cluster = NatsCluster::start(1, NatsSync::Always).await;
    for _ in 0..2 {
        let output = petstore(["log", "verify", "--store", &cluster.url("NOWHERE")]).exits_with(1);
        assert_eq!(output.stderr.trim().lines().count(), 1, "one sentence: {}", output.stderr);
    }
}

async fn open(url: &str) -> Arc<dyn EventLog> {
    Arc::new(open_log(url).await)
}

/// Opens the log. Servers that have only just been started may not respond in time at first.
async fn open_log(url: &str) -> NatsLog {
    eventually_ok("the log is opened", || NatsLog::open(url, None)).await
}

/// A node that shares the log with others.
async fn open_store(url: &str) -> Arc<PetStore> {
    Arc::new(open_node(open(url).await, LogAccess::Shared).await)
}
