//! The PostgreSQL log when the server or the network fails.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use adapters::event_log::postgres::PostgresLog;
use application::{
    PetStore, WriteError, contract,
    ports::{AppendError, EventLog, Fault, LogSource as _, Position, Version},
};
use domain::Pet;
use harness::{CutProxy, PostgresServer, all_pets, create};
use tokio::task::JoinSet;

use super::nodes::{TIMEOUT, eventually, node};

/// Adds pets until `stop` is set, and returns those that were acknowledged.
async fn write_on(store: Arc<PetStore>, name: String, stop: Arc<AtomicBool>) -> Vec<Pet> {
    let mut acknowledged = Vec::new();
    for nth in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        match create(&store, &format!("{name} {nth}")).await {
            Ok(pet) => acknowledged.push(pet),
            Err(WriteError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_nothing_and_its_nodes_recover_by_themselves() {
    let mut server = PostgresServer::start();
    let nodes = [node(&server.url("postgres")).await, node(&server.url("postgres")).await];
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for (nth, store) in nodes.iter().enumerate() {
            for client in 0..4 {
                let name = format!("pet of {client} at {nth} in round {round}");
                writers.spawn(write_on(store.clone(), name, stop.clone()));
            }
        }
        let before = nodes[0].version().position;
        nodes[1].caught_up(Position(before.0 + 20), TIMEOUT).await.unwrap();

        server.kill();
        server.start_again();
        for store in &nodes {
            let pet = eventually("the node writes again", || create(store, "after the crash")).await;
            acknowledged.push(pet);
        }
        stop.store(true, Ordering::SeqCst);
        acknowledged.extend(writers.join_all().await.into_iter().flatten());
    }

    let fresh = node(&server.url("postgres")).await;
    let stored = all_pets(&fresh).unwrap();
    acknowledged.sort_by_key(|pet| pet.id);
    assert!(acknowledged.is_sorted_by(|one, other| one.id < other.id), "no id is acknowledged twice");
    for pet in &acknowledged {
        assert!(stored.contains(pet), "{pet:?} was acknowledged");
    }
    for store in &nodes {
        store.caught_up(fresh.version().position, TIMEOUT).await.unwrap();
        assert_eq!(all_pets(store).unwrap(), stored, "every node sees what is stored");
        eventually("the node is well", async || {
            store.health().not_ready().map_or(Ok(()), |e| Err(e.clone()))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_reply_is_lost_is_unclear_and_one_that_was_not_sent_is_not_stored() {
    let server = PostgresServer::start();
    let proxy = CutProxy::start(server.address()).await;
    let log = PostgresLog::open(&server.url_through(proxy.address(), "postgres")).await.unwrap();
    let record = contract::record(1);
    proxy.lose_the_response_to("pet 1");
    let lost = log.append(Version::START, &record).await;
    assert!(matches!(lost, Err(AppendError::Unclear(_))), "{lost:?}");
    assert_eq!(eventually("the log is found again", || log.head()).await, Position(1), "it was stored");

    let stored = Version::at(Position(1), record.id);
    proxy.refuse();
    let rejected = eventually("the end of the connection is noticed", async || {
        match log.append(stored, &contract::record(2)).await {
            Err(AppendError::NotStored(error)) => Ok(error),
            other => Err(other),
        }
    });
    assert_eq!(rejected.await.fault, Fault::Unreachable);
    proxy.heal();
    let next = contract::record(2);
    let stored = eventually("the log is found again", || log.append(stored, &next)).await;
    assert_eq!(stored, Position(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reports_a_silent_network_and_recovers_when_it_heals() {
    let server = PostgresServer::start();
    let proxy = CutProxy::start(server.address()).await;
    let store = node(&server.url_through(proxy.address(), "postgres")).await;
    let other = node(&server.url("postgres")).await;
    create(&store, "Before").await.unwrap();

    proxy.freeze();
    let rejected = create(&store, "Rex").await;
    assert_eq!(rejected, Err(WriteError::Unavailable(Fault::Unreachable)));
    eventually("the node says that it is blind", async || store.health().not_ready().map(|_| ()).ok_or(()))
        .await;
    assert_eq!(all_pets(&store).unwrap()[0].details.name.as_str(), "Before", "it can still be read");
    let elsewhere = create(&other, "Tom").await.unwrap();

    proxy.heal();
    let after = eventually("the node writes again", || create(&store, "After")).await;
    assert!(after.id > elsewhere.id);
    eventually("the node is well", async || store.health().not_ready().map_or(Ok(()), |e| Err(e.clone())))
        .await;
    other.caught_up(store.version().position, TIMEOUT).await.unwrap();
    assert_eq!(all_pets(&store).unwrap(), all_pets(&other).unwrap());
    let rexes = all_pets(&store).unwrap().iter().filter(|pet| pet.details.name.as_str() == "Rex").count();
    assert!(rexes <= 1, "a create with an unclear outcome adds at most one pet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_is_unreachable_until_it_is_back() {
    let mut server = PostgresServer::start();
    let url = server.url("postgres");
    server.stop();
    let away = PostgresLog::open(&url).await.unwrap_err();
    assert_eq!(away.fault, Fault::Unreachable, "{away}");

    server.start_again();
    let log = PostgresLog::open(&url).await.unwrap();
    assert_eq!(log.head().await, Ok(Position::START));

    server.stop();
    let gone = eventually("the loss is noticed", async || log.head().await.err().ok_or(())).await;
    assert_eq!(gone.fault, Fault::Unreachable, "{gone}");
    server.start_again();
    assert_eq!(eventually("the server is found again", || log.head()).await, Position::START);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writable_server_is_found_among_several() {
    let read_only = PostgresServer::start_with(&["default_transaction_read_only=on"]);
    let primary = PostgresServer::start();
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let servers = format!("{gone},{},{}", read_only.address(), primary.address());
    let url = primary.url("postgres").replace(&primary.address().to_string(), &servers);

    let log = PostgresLog::open(&url).await.unwrap();
    contract::fill(&log, Version::START, 1).await;

    assert_eq!(primary.sql("postgres", "SELECT count(*) FROM petstore_commits"), "1");
    let rejected = PostgresLog::open(&read_only.url("postgres")).await.unwrap_err();
    assert_eq!(rejected.fault, Fault::Unreachable);
    assert!(rejected.detail.contains("read-only"), "{rejected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_turns_read_only_stores_nothing_and_says_so() {
    let server = PostgresServer::start();
    let url = format!("{}?target_session_attrs=any", server.url("postgres"));
    let log = PostgresLog::open(&url).await.unwrap();
    let stored = contract::fill(&log, Version::START, 1).await;
    server.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("postgres", "SELECT pg_reload_conf()");

    let rejected =
        eventually("the setting is active", async || match log.append(stored, &contract::record(2)).await {
            Err(AppendError::NotStored(error)) => Ok(error),
            other => Err(other),
        })
        .await;

    assert!(rejected.detail.contains("read-only"), "{rejected}");
    assert!(log.head().await.unwrap() >= Position(1), "it can still be read");
}
