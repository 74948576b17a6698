//! What the tests show when a server of theirs does not become ready.

use std::{any::Any, fs, panic, process::Command, time::Duration};

use harness::{NatsCluster, NatsSync, PostgresServer, Running, Startup};

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().expect("a message with values")
}

#[test]
fn a_server_with_a_broken_configuration_fails_the_test_with_its_log() {
    let started = panic::catch_unwind(|| PostgresServer::start_with(&["max_connections=many"]));
    let panic = started.expect_err("PostgreSQL rejects its configuration");
    let shown = message(&*panic);
    assert!(shown.contains("PostgreSQL ended with exit status: 1 before it was ready"), "{shown}");
    assert!(shown.contains("invalid value for parameter \"max_connections\""), "{shown}");
}

#[tokio::test]
async fn a_nats_server_that_ends_fails_the_test_with_its_log() {
    let mut cluster = NatsCluster::start(1, NatsSync::Default).await;
    cluster.servers[0].restart_with("jetstream {", "jetsteam {");
    let waited = tokio::spawn(async move { cluster.servers[0].wait_until_ready().await }).await;
    let panic = waited.expect_err("the server rejects its configuration").into_panic();
    let shown = message(&*panic);
    assert!(shown.contains("server n1 ended with exit status: 1 before it was ready"), "{shown}");
    assert!(shown.contains("unknown field \"jetsteam\""), "{shown}");
}

#[test]
fn a_server_that_is_late_fails_the_test_with_its_health_report_and_the_end_of_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let lines: Vec<_> = (1..=100).map(|line| format!("line {line}.")).collect();
    fs::write(&log, lines.join("\n")).unwrap();
    let mut server = Running(Command::new("sleep").arg("60").spawn().unwrap());
    let mut startup = Startup::new("a server", &log).within(Duration::ZERO);
    let waited = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        startup.wait(&mut server.0, || false, || "no leader".to_owned());
    }));
    let panic = waited.expect_err("it is never ready");
    let shown = message(&*panic);
    assert!(shown.contains("a server is not ready within"), "{shown}");
    assert!(shown.contains("health: no leader"), "{shown}");
    assert!(
        shown.contains("line 61.") && shown.contains("line 100.") && !shown.contains("line 60."),
        "{shown}"
    );
}
