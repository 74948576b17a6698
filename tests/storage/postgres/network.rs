//! PostgreSQL on another machine: the connection uses verified TLS, unless the URL says otherwise.

use adapters::event_log::postgres::PostgresLog;
use application::ports::{Fault, LogSource as _, Position};
use harness::{Network, PostgresServer, not_run};

use super::open_log;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_used_over_a_network_only_if_the_url_says_so() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => return not_run("PostgreSQL over a network", &reason),
    };
    let server = PostgresServer::start_in(network);
    let url = server.url("postgres");
    for weak in [url.clone(), format!("{url}?sslmode=prefer"), format!("{url}?sslmode=require")] {
        let rejected = PostgresLog::open(&weak).await.expect_err(&weak);
        assert_eq!(rejected.fault, Fault::CannotOpen, "{weak}: {rejected}");
        assert!(rejected.detail.contains("disable if the "), "{weak}: {rejected}");
    }
    let log = open_log(&format!("{url}?sslmode=disable")).await;
    assert_eq!(log.head().await, Ok(Position::START));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_network_must_present_a_trusted_certificate() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => return not_run("PostgreSQL over a network with TLS", &reason),
    };
    let server = PostgresServer::start_with_tls_in(network);
    let url = server.url("postgres");
    let trusted = format!("{url}?sslrootcert={}", server.certificate().display());
    let log = open_log(&trusted).await;
    assert_eq!(log.head().await, Ok(Position::START));
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'petstore'";
    assert_eq!(server.sql("postgres", encrypted), "t");

    let rejected = PostgresLog::open(&url).await.expect_err("this certificate is not trusted");
    assert_eq!(rejected.fault, Fault::CannotOpen, "{rejected}");
    assert!(rejected.detail.contains("sslrootcert"), "{rejected}");
}
