//! Servers that are killed under load: everything that was acknowledged is still there, in order, and
//! petstore needs no restart.

use std::{fs, process::Command, time::Duration};

use application::{
    log::contract,
    ports::{Fault, Position, ReadBound, Version},
};
use harness::{NatsCluster, NatsServer, NatsSync, create, eventually_ok, succeed};

use super::{super::load::Load, open, open_store};

/// Acknowledged pets that show that the stores are at work.
const SOME: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_leader_is_killed() {
    let (mut cluster, load) = cluster_under_load().await;
    let leader = cluster.leader_of("PETS").await;
    cluster.servers[leader].kill();
    load.continues(SOME).await;
    cluster.servers[leader].start_again();
    cluster.servers[leader].wait_until_ready().await;
    holds_everything(load, &cluster, "leader killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_three_may_die_and_come_back() {
    let (mut cluster, load) = cluster_under_load().await;
    let survivor = cluster.leader_of("PETS").await;
    let dead = [(survivor + 1) % 3, (survivor + 2) % 3];
    for server in dead {
        cluster.servers[server].kill();
    }
    load.is_rejected_everywhere().await;
    for server in dead {
        cluster.servers[server].start_again();
    }
    holds_everything(load, &cluster, "two of three killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_may_die_and_come_back() {
    let (mut cluster, load) = cluster_under_load().await;
    cluster.servers.iter_mut().for_each(NatsServer::kill);
    load.is_rejected_everywhere().await;
    cluster.servers.iter_mut().for_each(NatsServer::start_again);
    holds_everything(load, &cluster, "all three killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_freezes_is_replaced() {
    let (cluster, load) = cluster_under_load().await;
    let leader = cluster.leader_of("PETS").await;
    cluster.servers[leader].freeze();
    load.continues(SOME).await;
    cluster.servers[leader].thaw();
    holds_everything(load, &cluster, "leader frozen").await;
}

/// Such a server reports itself as unhealthy until the stream is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_creation_was_interrupted_is_created_again() {
    let mut cluster = NatsCluster::start(1, NatsSync::Default).await;
    let server = &mut cluster.servers[0];
    server.kill();
    server.leave_unfinished("PETS");
    server.start_again();
    server.wait_until_ready().await;
    let store = open_store(&cluster.url("PETS")).await;
    let created = create(&store, "Rex").await;
    assert_eq!(created.map(|pet| pet.id.get()), Ok(1));
}

/// A node knows commits from announcements and reads, without asking the leader. A leader that reports fewer, here after
/// its disk went back, may be outdated: its report is an error, not a shorter log.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_reports_less_than_was_read_is_not_taken_for_the_log() {
    let mut cluster = NatsCluster::start(1, NatsSync::Default).await;
    let url = cluster.url("PETS");
    let head = contract::fill(&*open(&url).await, Version::START, 1).await;
    let server = &mut cluster.servers[0];
    let (store, older) = (server.store(), server.store().with_file_name("older"));
    server.kill();
    succeed(Command::new("cp").arg("-a").args([&store, &older]));
    server.start_again();
    server.wait_until_ready().await;

    let (log, other) = (open(&url).await, open(&url).await);
    assert_eq!(log.head().await, Ok(head.position));
    contract::fill(&*other, head, 2).await;
    log.wait_for(Position(2), Duration::from_secs(30)).await.expect("the commits are announced");
    let read = log.read(Position::START, ReadBound::BATCH).await.expect("the log reads");
    assert_eq!(read.len(), 3);

    server.kill();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&older, &store).unwrap();
    server.start_again();
    eventually_ok("the leader is rejected", async || {
        let error = log.head().await.expect_err("one commit is not the log");
        assert_eq!(error.fault, Fault::Unreachable, "{error}");
        let is_outdated = error.detail.contains("reports position 1, but 3 was stored");
        if is_outdated { Ok(()) } else { Err(error) }
    })
    .await;
}

/// The server still responds to its clients, but has no quorum: a store that is connected there must connect elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_leaves_a_leader_that_is_cut_off_from_the_others() {
    let cluster = NatsCluster::start_divisible(NatsSync::Default).await;
    let elsewhere = open_store(&cluster.url("PETS")).await;
    let leader = cluster.leader_of("PETS").await;
    let next_to_the_leader = format!("nats://{}/PETS", cluster.servers[leader].address());
    let load = Load::start(vec![open_store(&next_to_the_leader).await, elsewhere]);
    load.continues_everywhere(SOME).await;
    cluster.cut_off(leader);
    load.continues_everywhere(SOME).await;
    cluster.heal();
    load.continues_everywhere(SOME).await;
    holds_everything(load, &cluster, "leader cut off").await;
}

/// Three servers, and two stores on them that accept pets.
async fn cluster_under_load() -> (NatsCluster, Load) {
    let cluster = NatsCluster::start(3, NatsSync::Default).await;
    let url = cluster.url("PETS");
    let load = Load::start(vec![open_store(&url).await, open_store(&url).await]);
    load.continues(SOME).await;
    (cluster, load)
}

async fn holds_everything(load: Load, cluster: &NatsCluster, what: &str) {
    load.continues(SOME).await;
    load.holds_in(&*open(&cluster.url("PETS")).await, what).await;
}
