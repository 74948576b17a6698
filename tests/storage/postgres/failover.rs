//! The PostgreSQL log with a standby that takes over.

use std::{pin::pin, time::Duration};

use adapters::event_log::postgres::PostgresLog;
use application::{
    PetStore, WriteError,
    ports::{DurabilityLevel, Fault, Position},
};
use domain::Pet;
use harness::{PostgresServer, all_pets, create, owner};

use tokio::time;

use super::{TIMEOUT, eventually, node};

/// A URL that names both servers.
fn url_of_both(primary: &PostgresServer, standby: &PostgresServer) -> String {
    let both = format!("{},{}", primary.address(), standby.address());
    primary.url("postgres").replace(&primary.address().to_string(), &both)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_continue_on_a_promoted_synchronous_standby_and_nothing_is_lost() {
    let mut primary = PostgresServer::start_with(&["synchronous_standby_names=standby"]);
    let standby = PostgresServer::standby_of(&primary);
    let url = url_of_both(&primary, &standby);
    let nodes = [node(&url).await, node(&url).await];
    assert_eq!(
        nodes[0].log().durability().level,
        DurabilityLevel::Replicated,
        "{:?}",
        nodes[0].log().durability()
    );
    let mut acknowledged = Vec::new();
    for nth in 0..20 {
        acknowledged.push(create(&nodes[nth % 2], &format!("pet {nth}")).await.unwrap());
    }

    primary.kill();
    standby.promote();
    acknowledged.push(eventually("writes resume", || create(&nodes[0], "after the failover")).await);

    nodes[1].caught_up(nodes[0].version().position, &owner(), TIMEOUT).await.unwrap();
    for store in &nodes {
        let stored = all_pets(store).unwrap();
        assert!(acknowledged.iter().all(|pet| stored.contains(pet)), "what was acknowledged is there");
    }
    // The standby waits for no other.
    assert_eq!(
        nodes[0].log().durability().level,
        DurabilityLevel::Synced,
        "{:?}",
        nodes[0].log().durability()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_that_has_lost_commits_is_rejected_until_a_server_has_them() {
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

    eventually("the log is rejected", async || {
        let reason = store.health().not_ready_for_reads().map(|error| error.fault);
        if reason == Some(Fault::AnotherLog) { Ok(()) } else { Err(reason) }
    })
    .await;
    assert!(create(&store, "on neither").await.is_err());
    assert_eq!(all_pets(&store).unwrap().len(), 2, "reads continue");
    assert_eq!(standby.sql("postgres", "SELECT count(*) FROM petstore_commits"), "1", "nothing is stored");

    primary.start_again();
    let next = eventually("writes resume", || create(&store, "on the primary again")).await;
    assert_eq!((next.id.get(), store.version().position), (3, Position(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_primary_that_comes_back_is_not_used() {
    let mut primary = PostgresServer::start_with(&["synchronous_standby_names=standby"]);
    let standby = PostgresServer::standby_of(&primary);
    let url = url_of_both(&primary, &standby);
    let nodes = [node(&url).await, node(&url).await, node(&url).await];
    create(&nodes[0], "before").await.unwrap();
    primary.kill();
    standby.promote();
    eventually("writes resume", || create(&nodes[0], "on the new primary")).await;
    for node in &nodes {
        node.caught_up(nodes[0].version().position, &owner(), TIMEOUT).await.unwrap();
    }

    primary.start_again();
    standby.sql(
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'petstore'",
    );
    let mut ids = vec![];
    for node in &nodes {
        ids.push(eventually("writes resume", || create(node, "after")).await.id.get());
    }
    assert_eq!(ids.len(), 3);
    assert!(ids.is_sorted_by(|earlier, later| earlier < later), "no id is assigned twice: {ids:?}");
    for node in &nodes {
        node.caught_up(nodes[2].version().position, &owner(), TIMEOUT).await.unwrap();
    }
    assert_eq!(primary.sql("postgres", "SELECT count(*) FROM petstore_commits"), "1", "nothing is stored");
}

/// PostgreSQL keeps such a commit and calls it a success: only a warning tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_wait_for_the_standbys_was_cancelled_is_not_acknowledged() {
    let mut primary = PostgresServer::start();
    let store = node(&primary.url("postgres")).await;
    create(&store, "before").await.unwrap();
    set_standby(&primary, "missing");

    // The server begins to wait for its standbys a moment after the setting changes.
    let canceled = eventually("a commit waits for the standbys", async || {
        match created_or_broken_off(&store, &primary).await {
            Ok(_) => Err("it was stored at once"),
            Err(rejected) => Ok(rejected),
        }
    })
    .await;
    assert_eq!(canceled, WriteError::Unavailable(Fault::Unreachable));

    let waiting = tokio::spawn({
        let store = store.clone();
        async move { create(&store, "cut off").await }
    });
    primary.stop();
    primary.start_again();
    assert_eq!(waiting.await.unwrap(), Err(WriteError::Unavailable(Fault::Unreachable)));
    assert!(store.health().not_ready().is_some(), "a node that cannot write says so");

    set_standby(&primary, "");
    eventually("writes resume", || create(&store, "after")).await;
}

/// The server may hold commits that did not wait for the standbys, so a node must not show them.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_open_its_log_before_the_standbys_have_everything() {
    let primary = PostgresServer::start();
    let url = primary.url("postgres");
    let store = node(&url).await;
    create(&store, "before").await.unwrap();
    let newest = store.version();
    set_standby(&primary, "missing");

    // The server begins to wait for its standbys a moment after the setting changes.
    let first_start = eventually("the server waits for its standbys", async || {
        PostgresLog::open(&url, None).await.err().ok_or("it was opened at once")
    })
    .await;
    assert_eq!(first_start.fault, Fault::Unreachable, "{first_start}");
    let restarted = PostgresLog::open(&url, Some(newest)).await;
    assert_eq!(restarted.err().map(|error| error.fault), Some(Fault::Unreachable), "a restart");
    assert!(PostgresLog::open_existing(&url).await.is_ok(), "a tool reads what is there");
}

fn set_standby(primary: &PostgresServer, name: &str) {
    primary.sql("postgres", &format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
    primary.sql("postgres", "SELECT pg_reload_conf()");
}

/// Creates a pet, and ends the wait of its commit for the standbys as an impatient administrator would.
async fn created_or_broken_off(store: &PetStore, primary: &PostgresServer) -> Result<Pet, WriteError> {
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let mut creating = pin!(create(store, "canceled"));
    loop {
        match time::timeout(Duration::from_millis(50), &mut creating).await {
            Ok(outcome) => return outcome,
            Err(_) => primary.sql("postgres", cancel),
        };
    }
}
