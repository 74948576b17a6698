//! NATS servers on another machine: the connection uses verified TLS, unless the URL says otherwise.

use adapters::event_log::nats::NatsLog;
use application::ports::{Fault, LogSource as _, Position};
use harness::{NatsCluster, Network, not_run};

use super::{access::make_certificates, open_log};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_used_over_a_network_only_if_the_url_says_so() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => return not_run("NATS over a network", &reason),
    };
    let cluster = NatsCluster::start_in(network, "").await;
    let rejected =
        NatsLog::open(&cluster.url("PETS")).await.expect_err("the connection would be in the clear");
    assert_eq!(rejected.fault, Fault::CannotOpen, "{rejected}");
    assert!(rejected.detail.contains("tls=off"), "{rejected}");
    let log = open_log(&format!("{}?tls=off", cluster.url("PETS"))).await;
    assert_eq!(log.head().await, Ok(Position::START));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_network_must_present_a_trusted_certificate() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => return not_run("NATS over a network with TLS", &reason),
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    make_certificates(directory.path(), &network.address().to_string());
    let path = |name: &str| directory.path().join(name).display().to_string();
    // The server also accepts clients in the clear, as if an attacker had removed the offer of TLS.
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}\nallow_non_tls: true",
        path("server.pem"),
        path("server.key")
    );
    let cluster = NatsCluster::start_in(network, &tls).await;
    let url = cluster.url("PETS");
    let log = open_log(&format!("{url}?ca={}", path("ca.pem"))).await;
    assert_eq!(log.head().await, Ok(Position::START));
    let rejected = NatsLog::open(&url).await.expect_err("this certificate is not trusted");
    assert_eq!(rejected.fault, Fault::CannotOpen, "{rejected}");
    assert!(rejected.detail.contains("ca="), "{rejected}");
}
