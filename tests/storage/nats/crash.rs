//! Servers that are killed under load: everything that was acknowledged is still there, in order, and
//! petstore needs no restart.

use std::sync::Arc;

use application::PetStore;
use harness::{NatsCluster, NatsSync};

use super::{super::load::Load, open, open_store};

/// Acknowledged pets that show that the stores are at work.
const SOME: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_leader_is_killed() {
    let mut cluster = NatsCluster::start(3, NatsSync::Default).await;
    let load = Load::start(two_stores(&cluster).await);
    load.continues(SOME).await;
    let leader = cluster.leader_of("PETS").await;
    cluster.servers_mut()[leader].kill();
    load.continues(SOME).await;
    cluster.servers_mut()[leader].start_again();
    cluster.servers()[leader].wait_until_ready().await;
    load.continues(SOME).await;
    load.holds_in(&*open(&cluster.url("PETS")).await, "leader killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_three_may_die_and_come_back() {
    let mut cluster = NatsCluster::start(3, NatsSync::Default).await;
    let load = Load::start(two_stores(&cluster).await);
    load.continues(SOME).await;
    let survivor = cluster.leader_of("PETS").await;
    let dead = [(survivor + 1) % 3, (survivor + 2) % 3];
    for server in dead {
        cluster.servers_mut()[server].kill();
    }
    load.is_rejected_everywhere().await;
    for server in dead {
        cluster.servers_mut()[server].start_again();
    }
    load.continues(SOME).await;
    load.holds_in(&*open(&cluster.url("PETS")).await, "two of three killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_may_die_and_come_back() {
    let mut cluster = NatsCluster::start(3, NatsSync::Default).await;
    let load = Load::start(two_stores(&cluster).await);
    load.continues(SOME).await;
    cluster.servers_mut().iter_mut().for_each(harness::NatsServer::kill);
    load.is_rejected_everywhere().await;
    cluster.servers_mut().iter_mut().for_each(harness::NatsServer::start_again);
    load.continues(SOME).await;
    load.holds_in(&*open(&cluster.url("PETS")).await, "all three killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_freezes_is_replaced() {
    let cluster = NatsCluster::start(3, NatsSync::Default).await;
    let load = Load::start(two_stores(&cluster).await);
    load.continues(SOME).await;
    let leader = cluster.leader_of("PETS").await;
    cluster.servers()[leader].freeze();
    load.continues(SOME).await;
    cluster.servers()[leader].thaw();
    load.continues(SOME).await;
    load.holds_in(&*open(&cluster.url("PETS")).await, "leader frozen").await;
}

/// The server still responds to its clients, but has no quorum: a store that is connected there must connect elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_leaves_a_leader_that_is_cut_off_from_the_others() {
    let cluster = NatsCluster::start_divisible(NatsSync::Default).await;
    let elsewhere = open_store(&cluster.url("PETS")).await;
    let leader = cluster.leader_of("PETS").await;
    let beside_the_leader = format!("nats://{}/PETS", cluster.servers()[leader].address());
    let load = Load::start(vec![open_store(&beside_the_leader).await, elsewhere]);
    load.continues_everywhere(SOME).await;
    cluster.cut_off(leader);
    load.continues_everywhere(SOME).await;
    cluster.heal();
    load.continues_everywhere(SOME).await;
    load.holds_in(&*open(&cluster.url("PETS")).await, "leader cut off").await;
}

async fn two_stores(cluster: &NatsCluster) -> Vec<Arc<PetStore>> {
    let url = cluster.url("PETS");
    vec![open_store(&url).await, open_store(&url).await]
}
