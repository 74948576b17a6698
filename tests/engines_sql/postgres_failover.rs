//! The PostgreSQL log with a standby that takes over.

use application::ports::{DurabilityLevel, Position};
use harness::PostgresServer;

use super::nodes::{PATIENCE, create, eventually, node, pets, try_pets};

/// A URL that names both servers.
fn url_of_both(primary: &PostgresServer, standby: &PostgresServer) -> String {
    let both = format!("{},{}", primary.address(), standby.address());
    primary.url("postgres").replace(&primary.address().to_string(), &both)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_go_on_with_a_promoted_synchronous_standby_and_nothing_is_lost() {
    let mut primary = PostgresServer::start_with(&["synchronous_standby_names=standby"]);
    let standby = PostgresServer::standby_of(&primary);
    let url = url_of_both(&primary, &standby);
    let nodes = [node(&url).await, node(&url).await];
    assert_eq!(nodes[0].durability().level, DurabilityLevel::Replicated, "{:?}", nodes[0].durability());
    let mut acknowledged = Vec::new();
    for nth in 0..20 {
        acknowledged.push(create(&nodes[nth % 2], &format!("pet {nth}")).await.unwrap());
    }

    primary.kill();
    standby.promote();
    acknowledged.push(eventually("writing goes on", || create(&nodes[0], "after the failover")).await);

    nodes[1].caught_up(nodes[0].version().position, PATIENCE).await.unwrap();
    for store in &nodes {
        let stored = pets(store);
        assert!(acknowledged.iter().all(|pet| stored.contains(pet)), "what was acknowledged is there");
    }
    // The standby waits for no other.
    assert_eq!(nodes[0].durability().level, DurabilityLevel::Synced, "{:?}", nodes[0].durability());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_that_has_lost_commits_is_replayed_from_the_start() {
    let mut primary = PostgresServer::start();
    let mut standby = PostgresServer::standby_of(&primary);
    let store = node(&url_of_both(&primary, &standby)).await;
    create(&store, "on both").await.unwrap();
    eventually("the standby has it", async || {
        let count = "SELECT count(*) FROM petstore_commits";
        (standby.sql("postgres", "SELECT to_regclass('petstore_commits') IS NOT NULL") == "t"
            && standby.sql("postgres", count) == "1")
            .then_some(())
            .ok_or(())
    })
    .await;
    standby.stop();
    create(&store, "on the primary only").await.unwrap();

    primary.kill();
    standby.start_again();
    standby.promote();

    eventually("the lost pet is no longer shown", async || {
        // While the log is replayed, nothing is shown.
        let shown = try_pets(&store).map_err(|fault| fault.to_string())?;
        let names: Vec<_> = shown.iter().map(|pet| pet.details.name.as_str()).collect();
        if names == ["on both"] { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    let next = eventually("writing goes on", || create(&store, "after the failover")).await;
    assert_eq!((next.id.get(), store.version().position), (2, Position(2)));
}
