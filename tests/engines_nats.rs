//! The log in NATS JetStream, on one real server and on a cluster of three.

mod access;
mod crash;
mod durability;
mod load;
mod lost_answer;
mod network;
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

use adapters::{event_log::nats::NatsLog, read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreatePet, KeyId, PetStore, Sharing, contract,
    ports::{EventLog, Fault},
};
use domain::{CategoryId, NewPet, PetName};
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
    let (read_model, clock) = (Arc::new(MemoryReadModel::default()), Arc::new(SystemClock));
    PetStore::open(open(url).await, read_model, clock, Sharing::Shared).await.expect("the log is sound")
}

fn pet(name: &str) -> CreatePet {
    let name = PetName::new(name).expect("a plain name");
    let pet = NewPet { name, category_id: CategoryId(1), status: None };
    CreatePet { pet, by: KeyId("test".into()), request_key: None }
}
