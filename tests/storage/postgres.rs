//! The log in PostgreSQL: a server that works here, failing servers in the modules.

mod failover;
mod faults;
mod passfile;
mod rejection;

use std::{sync::Arc, time::Duration};

use adapters::event_log::postgres::PostgresLog;
use application::{
    LogAccess, PetStore,
    log::contract,
    ports::{AppendError, DurabilityLevel, EventLog, Fault, LogSource as _, Position, Version},
};
use harness::{PostgresServer, eventually_ok as eventually, open_node};
use tokio::{sync::Mutex, task::JoinSet};

/// Longer than anything takes on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A node on the log at `url`.
async fn node(url: &str) -> Arc<PetStore> {
    Arc::new(open_node(open(url).await, LogAccess::Shared).await)
}

async fn open(url: &str) -> Arc<dyn EventLog> {
    Arc::new(open_log(url).await)
}

/// Opens the log. The server may not respond in time at first.
async fn open_log(url: &str) -> PostgresLog {
    eventually("the log is opened", || PostgresLog::open(url, None)).await
}

/// The log at `url`, as four nodes would open it.
async fn open_all(url: &str) -> Vec<Arc<dyn EventLog>> {
    let mut logs = Vec::new();
    for _ in 0..4 {
        logs.push(open(url).await);
    }
    logs
}

#[tokio::test(flavor = "multi_thread")]
async fn the_postgresql_log_meets_the_contract() {
    let server = Mutex::new(PostgresServer::start());
    let fresh = async || {
        let mut server = server.lock().await;
        let database = server.create_database();
        open(&server.url(&database)).await
    };
    contract::check_all(fresh).await;
    let shared = async || {
        let mut server = server.lock().await;
        let database = server.create_database();
        open_all(&server.url(&database)).await
    };
    contract::check_writers(shared).await;
    let database = server.lock().await.create_database();
    let url = server.lock().await.url(&database);
    contract::a_reopened_log_holds_everything(async || open(&url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_at_the_same_time_create_the_tables_once() {
    let server = PostgresServer::start();
    // All eight wait for the one that creates the tables.
    let url: Arc<str> = server.url_with_long_timeout("postgres").into();
    let mut nodes = JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        nodes.spawn(async move { drop(open_log(&url).await) });
    }
    nodes.join_all().await;
    assert_eq!(server.sql("postgres", "SELECT count(*), max(version) FROM petstore_schema"), "1|1");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_a_newer_version_are_rejected_and_left_unchanged() {
    let server = PostgresServer::start();
    let log = open(&server.url("postgres")).await;
    contract::fill(&*log, Version::START, 1).await;
    server.sql("postgres", "UPDATE petstore_schema SET version = 2");

    let rejected = PostgresLog::open(&server.url("postgres"), None).await.err().unwrap();

    assert_eq!(rejected.fault, Fault::UnsupportedFormat);
    assert!(rejected.detail.contains("version 2"), "{rejected}");
    assert_eq!(server.sql("postgres", "SELECT count(*) FROM petstore_commits"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stored_on_top_of_another_history() {
    let server = PostgresServer::start();
    let log = open(&server.url("postgres")).await;
    let stored = contract::fill(&*log, Version::START, 1).await;
    server.sql("postgres", "UPDATE petstore_commits SET id = gen_random_uuid() WHERE position = 1");

    let rejected = log.append(stored, &[contract::record(2)]).await;

    assert_eq!(rejected, Err(AppendError::Conflict), "reading on tells more");
    assert_eq!(log.head().await, Ok(Position(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_session_says_why_and_reveals_no_password() {
    let server = PostgresServer::start();
    let url = server.url("postgres");
    for (url, word) in [
        (
            url.replace("hunter2", "hunter3"),
            "(SQLSTATE 28P01); check the user and the password, or the password file",
        ),
        (url.replace(":hunter2", ""), "password missing"),
        (server.url("nowhere"), "(SQLSTATE 3D000); create the database, or correct the URL"),
        (format!("{url}?sslmode=verify-full"), "TLS"),
    ] {
        let rejected = PostgresLog::open(&url, None).await.err().unwrap();
        assert_eq!(rejected.fault, Fault::CannotOpen, "{rejected}");
        assert!(rejected.detail.contains(word), "{rejected}");
        assert!(!format!("{rejected:?}").contains("hunter"), "{rejected:?}");
    }
    open_log(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reported_durability_is_what_the_server_really_does() {
    let mut server = PostgresServer::start();
    let (hasty, forgetful) = (server.create_database(), server.create_database());
    server.sql("postgres", &format!("ALTER DATABASE {hasty} SET synchronous_commit = off"));
    drop(open(&server.url(&forgetful)).await);
    server.sql(&forgetful, "ALTER TABLE petstore_commits SET UNLOGGED");
    for (database, level, fact) in [
        ("postgres", DurabilityLevel::Synced, ("synchronous_commit", "on")),
        (&hasty, DurabilityLevel::Buffered, ("synchronous_commit", "off")),
        (&forgetful, DurabilityLevel::Buffered, ("table", "UNLOGGED")),
    ] {
        let durability = open(&server.url(database)).await.durability();
        assert_eq!(durability.level, level, "{durability:?}");
        assert_eq!(durability.promise.contains("NOT DURABLE"), level == DurabilityLevel::Buffered);
        assert!(durability.settings.contains(&(fact.0.into(), fact.1.into())), "{durability:?}");
    }

    server.sql("postgres", "ALTER SYSTEM SET fsync = off");
    server.stop();
    server.start_again();
    let durability = open(&server.url("postgres")).await.durability();
    assert_eq!(durability.level, DurabilityLevel::Buffered, "{durability:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_with_the_trust_that_the_url_asks_for() {
    let server = PostgresServer::start_with_tls();
    let other = PostgresServer::start_with_tls();
    let (ours, theirs) = (server.certificate(), other.certificate());
    let url = server.url("postgres");
    let by_name = url.replace("127.0.0.1", "localhost");
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'petstore'";
    for (url, response) in [
        (format!("{url}?sslmode=disable"), "f"),
        (url.clone(), "f"),
        (format!("{by_name}?sslrootcert={}", ours.display()), "t"),
        (format!("{by_name}?sslmode=verify-full&sslrootcert={}", ours.display()), "t"),
    ] {
        let log = open(&url).await;
        assert_eq!(log.head().await, Ok(Position::START));
        assert_eq!(server.sql("postgres", encrypted), response, "{url}");
        drop(log);
        eventually("the connections end", async || {
            let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore'";
            (server.sql("postgres", left) == "0").then_some(()).ok_or(())
        })
        .await;
    }
    for url in [
        format!("{url}?sslmode=verify-full&sslrootcert={}", ours.display()),
        format!("{by_name}?sslmode=verify-full&sslrootcert={}", theirs.display()),
        format!("{by_name}?sslrootcert={}", theirs.display()),
        format!("{by_name}?sslmode=verify-full"),
    ] {
        let rejected = PostgresLog::open(&url, None).await.err().unwrap();
        assert_eq!(rejected.fault, Fault::CannotOpen, "{url}: {rejected}");
        assert!(rejected.detail.contains("certificate"), "{url}: {rejected}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_create_no_tables_and_a_missing_log_is_not_an_empty_one() {
    let mut server = PostgresServer::start();
    let url = server.url_with_long_timeout("postgres");
    let rejected = PostgresLog::open_existing(&url).await.err().unwrap();
    assert_eq!(rejected.fault, Fault::AnotherLog);
    assert!(rejected.detail.contains("no log"), "{rejected}");

    let log = open(&url).await;
    contract::fill(&*log, Version::START, 1).await;
    assert_eq!(PostgresLog::open_existing(&url).await.unwrap().head().await, Ok(Position(1)));
    server.sql("postgres", "DROP TABLE petstore_schema, petstore_commits");
    assert_eq!(log.head().await.unwrap_err().fault, Fault::CannotOpen);
    server.stop();
    server.start_again();
    let gone = eventually("the server is back", async || match log.head().await {
        Err(error) if error.fault == Fault::AnotherLog => Ok(error),
        other => Err(other),
    });
    assert!(gone.await.detail.contains("no log"));
}
