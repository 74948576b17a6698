//! Several nodes on one log, and several logs on one cluster.

use std::time::Duration;

use application::ports::{Position, ReadBound};
use harness::{NatsCluster, NatsSync, create};

use super::{load::Load, open, open_store};

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_write_at_once_and_both_see_everything() {
    let cluster = NatsCluster::start(3, NatsSync::Default).await;
    let url = cluster.url("PETS");
    let load = Load::start(vec![open_store(&url).await, open_store(&url).await]);
    load.goes_on(2_000).await;
    load.holds_in(&*open(&url).await, "two nodes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_nodes_write_at_once_and_all_see_everything() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let url = cluster.url("PETS");
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open_store(&url).await);
    }
    let load = Load::start(stores);
    load.goes_on(2_000).await;
    load.holds_in(&*open(&url).await, "four nodes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_soon_shows_what_the_other_writes() {
    let cluster = NatsCluster::start(3, NatsSync::Default).await;
    let url = cluster.url("PETS");
    let (one, other) = (open_store(&url).await, open_store(&url).await);
    for number in 1..=20 {
        let created = create(&one, &format!("pet {number}")).await.expect("the log is there");
        other.caught_up(Position(number), Duration::from_secs(5)).await.expect("news arrive by themselves");
        assert_eq!(harness::pet(&other, created.id).unwrap(), Some(created));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_on_one_cluster_do_not_see_each_other() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let cats = open_store(&cluster.url("CATS")).await;
    let dogs = open_store(&cluster.url("DOGS")).await;
    let tom = create(&cats, "Tom").await.expect("the log is there");
    let rex = create(&dogs, "Rex").await.expect("the log is there");
    assert_eq!(tom.id, rex.id, "each store counts for itself");
    for (stream, name) in [("CATS", "Tom"), ("DOGS", "Rex")] {
        let log = open(&cluster.url(stream)).await;
        let records = log.read(Position::START, ReadBound::BATCH).await.expect("the log reads");
        assert_eq!(records.len(), 1, "{stream} holds one commit");
        assert!(String::from_utf8_lossy(&records[0].bytes).contains(name), "{stream} holds {name}");
    }
}
