//! `/livez` of a service whose parts fail: a fault that may pass leaves it alive, and a part that has stopped does not.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use application::{LogAccess, PetStore, ports::Fault};
use harness::{Call, FaultyLog, LogFault, open_node, pet_named, serve_node};
use tokio::{task, time};

/// A service on a log, and where it listens.
async fn serve_on(log: Arc<FaultyLog>, access: LogAccess) -> (Arc<PetStore>, SocketAddr) {
    let store = Arc::new(open_node(log, access).await);
    (store.clone(), serve_node(store).await)
}

async fn livez(address: SocketAddr) -> (u16, String) {
    let ask = move || Call::new(address, "GET", "/livez").send();
    let response = task::spawn_blocking(ask).await.unwrap();
    (response.status, response.text().to_owned())
}

/// Waits until the store has noticed this fault.
async fn noticed(store: &PetStore, fault: Fault) {
    let noticed = async {
        while store.health().not_ready().map(|error| error.fault) != Some(fault) {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(Duration::from_mins(1), noticed).await.expect("the fault is noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_panicked_fails_liveness() {
    let log = FaultyLog::with(LogFault::AppendsPanic);
    let (store, address) = serve_on(log, LogAccess::Exclusive).await;
    assert_eq!(livez(address).await.0, 200);
    assert!(store.create(pet_named("Rex")).await.is_err());
    noticed(&store, Fault::Stopped).await;
    let (status, text) = livez(address).await;
    assert_eq!(
        (status, text.as_str()),
        (503, r#"{"status":"stopped","reason":"an internal component stopped"}"#)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_away_does_not_fail_liveness() {
    let log = FaultyLog::with(LogFault::None);
    let (store, address) = serve_on(log.clone(), LogAccess::Exclusive).await;
    log.fails_with(LogFault::Away);
    assert!(store.create(pet_named("Rex")).await.is_err());
    noticed(&store, Fault::Unreachable).await;
    assert_eq!(livez(address).await.0, 200);
}
