//! The log in object storage, on a real Ceph gateway.

mod lost_requests;
mod rejected_stores;
mod replaced_logs;
mod segments;
mod tls;

use std::sync::Arc;

use application::{LogAccess, PetStore, Version, log::contract, ports::EventLog};
use harness::{Gateway, open_node};

#[tokio::test(flavor = "multi_thread")]
async fn object_storage_keeps_the_contract() {
    let gateway = Gateway::shared();
    let shared = async || {
        let url = gateway.log();
        let mut logs = Vec::new();
        for _ in 0..8 {
            logs.push(open(&url).await);
        }
        logs
    };
    let url = gateway.log();
    tokio::join!(
        contract::check_all(async || open(&gateway.log()).await),
        contract::check_writers(shared),
        contract::a_reopened_log_holds_everything(async || open(&url).await),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_together_on_an_empty_prefix_share_one_log() {
    let url = Gateway::shared().url();
    let opened: [_; 2] = tokio::join!(open(&url), open(&url)).into();
    let first = contract::fill(&*opened[0], Version::START, 1).await;
    for log in opened {
        assert_eq!(log.head().await, Ok(first.position));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_opens_while_another_node_appends() {
    let url = Gateway::shared().log();
    let writer = open(&url).await;
    let appending = tokio::spawn(async move { contract::fill(&*writer, Version::START, 300).await });
    let mut opened = 0;
    while !appending.is_finished() {
        let head = open(&url).await.head().await;
        assert!(head.is_ok(), "after {opened} openings: {head:?}");
        opened += 1;
    }
    assert_eq!(open(&url).await.head().await, Ok(appending.await.unwrap().position));
    assert!(opened > 1, "the log was opened during the appends");
}

async fn open(url: &str) -> Arc<dyn EventLog> {
    Arc::new(Gateway::shared().open(url).await)
}

/// A node on a log that it reaches through this endpoint.
async fn node_via(endpoint: &str, url: &str) -> Arc<PetStore> {
    let log = Gateway::shared().open_via(endpoint, url).await;
    Arc::new(open_node(Arc::new(log), LogAccess::Shared).await)
}

/// The bucket of a URL.
fn bucket(url: &str) -> &str {
    url.split('/').nth(2).unwrap()
}

/// The path of the object that begins with this commit.
fn object_of(url: &str, position: u64) -> String {
    let end = format!("/commits/{position:020}");
    let key = Gateway::shared().keys(bucket(url)).into_iter().find(|key| key.ends_with(&end));
    format!("{}/{}", bucket(url), key.expect("there is such an object"))
}

/// Fills a new log with so many commits, and returns its URL.
async fn filled(commits: u64) -> String {
    let url = Gateway::shared().log();
    let log = Gateway::shared().open(&url).await;
    contract::fill(&log, Version::START, commits).await;
    log.close().await;
    url
}
