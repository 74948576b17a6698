//! The PostgreSQL log when the server or the network fails.

use std::net::TcpListener;

use adapters::event_log::postgres::PostgresLog;
use application::{
    log::contract,
    ports::{AppendError, EventLog as _, Fault, LogSource as _, Position, Version},
};
use harness::{CutProxy, PostgresServer};

use super::{eventually, open_log};

#[tokio::test(flavor = "multi_thread")]
async fn an_append_whose_reply_is_lost_is_unclear_and_one_that_was_not_sent_is_not_stored() {
    let server = PostgresServer::start();
    let proxy = CutProxy::start(server.address()).await;
    let log = open_log(&url_through(&proxy, &server)).await;
    let record = contract::record(1);
    proxy.lose_the_response_to("pet 1");
    let lost = log.append(Version::START, std::slice::from_ref(&record)).await;
    assert!(matches!(lost, Err(AppendError::Unclear(_))), "{lost:?}");
    assert_eq!(eventually("the log is found again", || log.head()).await, Position(1), "it was stored");

    let stored = Version::at(Position(1), record.id);
    proxy.refuse();
    let rejected = eventually("the end of the connection is noticed", async || {
        match log.append(stored, &[contract::record(2)]).await {
            Err(AppendError::NotStored(error)) => Ok(error),
            other => Err(other),
        }
    });
    assert_eq!(rejected.await.fault, Fault::Unreachable);
    proxy.heal();
    let next = contract::record(2);
    let stored =
        eventually("the log is found again", || log.append(stored, std::slice::from_ref(&next))).await;
    assert_eq!(stored, Position(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writable_server_is_found_among_several() {
    let read_only = PostgresServer::start_with(&["default_transaction_read_only=on"]);
    let primary = PostgresServer::start();
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let servers = format!("{gone},{},{}", read_only.address(), primary.address());
    let url = primary.url("postgres").replace(&primary.address().to_string(), &servers);

    let log = open_log(&url).await;
    contract::fill(&log, Version::START, 1).await;

    assert_eq!(primary.sql("postgres", "SELECT count(*) FROM petstore_commits"), "1");
    let rejected = PostgresLog::open(&read_only.url("postgres"), None).await.err().unwrap();
    assert_eq!(rejected.fault, Fault::Unreachable);
    assert!(rejected.detail.contains("read-only"), "{rejected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_turns_read_only_stores_nothing_and_says_so() {
    let server = PostgresServer::start();
    let url = format!("{}?target_session_attrs=any", server.url("postgres"));
    let log = open_log(&url).await;
    let stored = contract::fill(&log, Version::START, 1).await;
    server.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("postgres", "SELECT pg_reload_conf()");

    let rejected = eventually("the setting is active", async || {
        match log.append(stored, &[contract::record(2)]).await {
            Err(AppendError::NotStored(error)) => Ok(error),
            other => Err(other),
        }
    })
    .await;

    assert!(rejected.detail.contains("read-only"), "{rejected}");
    assert!(log.head().await.unwrap() >= Position(1), "it can still be read");
}

fn url_through(proxy: &CutProxy, server: &PostgresServer) -> String {
    server.url("postgres").replace(&server.address().to_string(), &proxy.address().to_string())
}
