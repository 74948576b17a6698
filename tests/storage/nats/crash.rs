//! Servers that are killed or cut off in a moment of their own; `real_time` kills and freezes them under load.

use std::{fs, process::Command, time::Duration};

use application::{
    log::contract,
    ports::{Fault, Position, ReadBound, Version, wait_for_records},
};
use harness::{NatsCluster, NatsSync, all_pets, create, eventually_ok, owner, succeed};

use super::{open, open_store};

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
    wait_for_records(&*log, Position(2), Duration::from_secs(30)).await;
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
    let stores = [open_store(&next_to_the_leader).await, elsewhere];
    let mut acknowledged = Vec::new();
    for is_cut_off in [false, true, false] {
        if is_cut_off {
            cluster.cut_off(leader);
        } else {
            cluster.heal();
        }
        for store in &stores {
            acknowledged.push(eventually_ok("the store accepts pets", || create(store, "Rex")).await);
        }
    }
    for store in &stores {
        store.caught_up(stores[1].version().position, &owner(), Duration::from_mins(1)).await.unwrap();
        let pets = all_pets(store).unwrap();
        assert!(acknowledged.iter().all(|pet| pets.contains(pet)), "{acknowledged:?}: {pets:?}");
    }
}
