//! The log in object storage, on a real Ceph gateway.

use std::sync::Arc;

use application::{log::contract, ports::EventLog};
use harness::Gateway;

#[tokio::test(flavor = "multi_thread")]
async fn object_storage_keeps_the_contract() {
    let gateway = Gateway::shared();
    contract::check_all(async || open(&gateway.url()).await).await;
    let shared = async || {
        let url = gateway.url();
        let mut logs = Vec::new();
        for _ in 0..4 {
            logs.push(open(&url).await);
        }
        logs
    };
    contract::check_writers(shared).await;
    let url = gateway.url();
    contract::a_reopened_log_holds_everything(async || open(&url).await).await;
}

async fn open(url: &str) -> Arc<dyn EventLog> {
    Arc::new(Gateway::shared().open(url).await)
}
