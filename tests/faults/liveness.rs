//! `/livez` of a service with a part that has stopped.

use std::sync::Arc;

use application::{LogAccess, ports::Fault};
use harness::{Call, FaultyLog, LogFault, eventually_ok, open_node, pet_named, serve_node};
use tokio::task;

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_panicked_fails_liveness() {
    let log = FaultyLog::with(LogFault::AppendsPanic);
    let store = Arc::new(open_node(log, LogAccess::Exclusive).await);
    let address = serve_node(store.clone()).await;
    let livez = async || task::spawn_blocking(move || Call::new(address, "GET", "/livez").send()).await.unwrap();
    assert_eq!(livez().await.status, 200);
    assert!(store.create(pet_named("Rex")).await.is_err());
    eventually_ok("the fault is noticed", async || {
        let fault = store.health().not_ready().map(|error| error.fault);
        if fault == Some(Fault::Stopped) { Ok(()) } else { Err(fault) }
    })
    .await;
    let stopped = livez().await;
    let reason = r#"{"status":"stopped","reason":"an internal component stopped"}"#;
    assert_eq!((stopped.status, stopped.text()), (503, reason));
}
