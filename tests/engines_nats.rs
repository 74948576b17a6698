//! The log in NATS JetStream, on one real server and on a cluster of three.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use adapters::event_log::nats::NatsLog;
use application::{contract, ports::EventLog};
use harness::{NatsCluster, NatsSync};

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_keeps_the_contract() {
    keeps_the_contract(&NatsCluster::start(1, NatsSync::Default).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_the_contract() {
    keeps_the_contract(&NatsCluster::start(3, NatsSync::Always).await).await;
}

async fn keeps_the_contract(cluster: &NatsCluster) {
    let streams = AtomicUsize::new(0);
    let fresh = async || open(cluster, &format!("S{}", streams.fetch_add(1, Ordering::Relaxed))).await;
    contract::check_all(fresh).await;
    contract::a_reopened_log_holds_everything(async || open(cluster, "AGAIN").await).await;
}

async fn open(cluster: &NatsCluster, stream: &str) -> Arc<dyn EventLog> {
    Arc::new(NatsLog::open(&cluster.url(stream)).await.expect("the servers are there"))
}
