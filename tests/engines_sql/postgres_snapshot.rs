//! Snapshots of a log on a server, in a local folder.

use harness::{App, PostgresServer, eventually, program};

const REX: &str = r#"{"name":"Rex","categoryId":1}"#;

/// Waits until the service says that it has started from a snapshot.
fn started_from_snapshot(app: &App) {
    eventually("the snapshot is used", || {
        app.printed().1.contains("started from the snapshot at position").then_some(())
    });
}

#[test]
fn a_node_joins_a_log_on_a_server_from_a_local_snapshot() {
    let server = PostgresServer::start();
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let flags = ["--snapshot-every", "5", "--snapshot-dir", cache.to_str().unwrap()];
    let store = server.url("postgres");
    let mut app = App::start_on(program(), &store, tempfile::tempdir().unwrap(), &flags);
    let other = App::start_on(program(), &store, tempfile::tempdir().unwrap(), &flags);
    for _ in 0..20 {
        let position = app.post(REX).header("log-position").unwrap().to_owned();
        let seen = other.call("GET", "/v1/pets").header("Log-Position", &position).send();
        assert_eq!(seen.status, 200);
    }
    assert_eq!(app.terminate().code(), Some(0));
    let files = cache.read_dir().unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(files.into_iter().any(|name| name.starts_with("snapshot-")), "one for both nodes");
    // What the other node writes meanwhile is the tail.
    for _ in 0..3 {
        assert_eq!(other.post(REX).status, 201);
    }
    app.start_again();
    started_from_snapshot(&app);
    assert_eq!(app.all_pets(), other.all_pets());
    assert_eq!(app.post(REX).json()["id"], 24);
    let verify = ["log", "verify", "--store", &store, "--snapshot-dir", cache.to_str().unwrap()];
    let verified = harness::petstore(verify);
    assert!(verified.stdout.contains("the same as a replay gives"), "{verified:?}");
}

#[test]
fn a_snapshot_of_a_database_that_was_restored_or_damaged_is_not_served() {
    let server = PostgresServer::start();
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let flags = ["--snapshot-every", "1", "--snapshot-dir", cache.to_str().unwrap()];
    let mut app = App::start_on(program(), &server.url("postgres"), tempfile::tempdir().unwrap(), &flags);
    for _ in 0..20 {
        assert_eq!(app.post(REX).status, 201);
    }
    assert_eq!(app.terminate().code(), Some(0));
    server.sql("postgres", "DELETE FROM petstore_commits WHERE position > 10");
    app.start_again();
    assert_eq!(app.all_pets().len(), 10, "only what the log holds");
    for _ in 0..5 {
        assert_eq!(app.post(REX).status, 201);
    }
    assert_eq!(app.terminate().code(), Some(0));
    let bytes = "overlay(bytes placing 'jex' from position('Rex' in bytes) for 3)";
    server.sql("postgres", &format!("UPDATE petstore_commits SET bytes = {bytes} WHERE position = 4"));
    assert!(app.try_start_again().is_ok());
    started_from_snapshot(&app);
    eventually("the damage is found", || {
        let ready = app.anonymous("GET", "/readyz").send();
        (ready.status == 503 && ready.text().contains("the log is damaged")).then_some(())
    });
    app.post(REX).error(503, "unavailable");
    eventually("the snapshot is dropped", || {
        let mut files =
            cache.read_dir().unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        (!files.any(|name| !name.contains(".lock"))).then_some(())
    });
    app.kill();
    let refused = app.try_start_again().expect_err("the next start refuses");
    assert!(refused.stderr.contains("position 4"), "{}", refused.stderr);
}
