//! The embedded log against its contract and against what the world does to it.

use std::sync::Arc;

use application::{contract, ports::EventLog};
use tempfile::TempDir;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_log_keeps_the_contract() {
    let folder = TempDir::new().unwrap();
    let fresh = async || {
        let path = tempfile::tempdir_in(&folder).unwrap().keep();
        Arc::new(SledLog::open(path).unwrap()) as Arc<dyn EventLog>
    };
    contract::check_all(fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reopened_log_holds_everything() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a").join("b");
    let open = async || Arc::new(SledLog::open(&path).unwrap()) as Arc<dyn EventLog>;
    contract::a_reopened_log_holds_everything(open).await;
}
