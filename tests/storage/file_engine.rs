//! The worked example of `docs/storage-adapters.md`, an embedded engine in one plain file, meets the contract.

mod engine;

use std::sync::Arc;

use adapters::event_log::embedded::EmbeddedLog;
use application::{contract, ports::EventLog};

use engine::FileEngine;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_meets_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    contract::check_all(async || {
        let path = tempfile::tempdir_in(&directory).unwrap().keep().join("log");
        Arc::new(EmbeddedLog::<FileEngine>::open(path).unwrap()) as Arc<dyn EventLog>
    })
    .await;
}
