//! The log in NATS JetStream, on one real server and on a cluster of three.

mod access;
mod crash;
mod durability;
mod foreign;
mod load;
mod lost_answer;
mod network;
mod payload;
mod quota;
mod refusal;
mod settings;
mod sharing;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use adapters::event_log::nats::NatsLog;
use application::{
    LogAccess, PetStore, contract,
    ports::{EventLog, Fault},
};
use harness::{NatsCluster, NatsSync, open_node};

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
    let fresh = async || open(&cluster.url(&format!("S{}", streams.fetch_add(1, Ordering::Relaxed)))).await;
    contract::check_all(fresh).await;
    contract::a_reopened_log_holds_everything(async || open(&cluster.url("AGAIN")).await).await;
}

async fn open(url: &str) -> Arc<dyn EventLog> {
    Arc::new(open_log(url).await)
}

/// Opens the log, and tries again for as long as the service would when servers have only just been started.
async fn open_log(url: &str) -> NatsLog {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match NatsLog::open(url).await {
            Ok(log) => return log,
            Err(error) => {
                assert!(error.fault == Fault::Unreachable && Instant::now() < deadline, "{error}");
            }
        }
    }
}

/// A node that shares the log with others.
async fn open_store(url: &str) -> PetStore {
    open_node(open(url).await, LogAccess::Shared).await
}
