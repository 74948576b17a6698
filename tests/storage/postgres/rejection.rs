//! A PostgreSQL server that responds and rejects commits: the service reports it until commits succeed again.

use harness::{App, PostgresServer, REX, eventually, wait_until};

#[test]
fn a_revoked_right_stops_writes_until_it_is_granted_again() {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE ROLE shop LOGIN PASSWORD 'shop'");
    server.sql("postgres", "GRANT CREATE ON SCHEMA public TO shop");
    let store = format!("postgres://shop:shop@{}/postgres", server.address());
    let app = App::on(&store);
    assert_eq!(app.post(REX).status, 201);

    server.sql("postgres", "REVOKE INSERT ON petstore_commits FROM shop");
    for _ in 0..20 {
        app.post(REX).error(503, "unavailable");
        let ready = app.probe("/readyz");
        assert_eq!(ready.status, 503, "{}", ready.text());
        assert_eq!(ready.json()["reason"], "a write to storage failed");
    }
    assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue");
    let printed = app.wait_for_log("permission denied");
    assert_eq!(printed.matches("permission denied").count(), 1, "one line for the change: {printed}");

    server.sql("postgres", "GRANT INSERT ON petstore_commits TO shop");
    app.wait_until_ready();
    assert_eq!(app.post(REX).json()["id"], 2);
    assert_eq!(server.sql("postgres", "SELECT count(*) FROM petstore_commits"), "2", "no probe was stored");
}

#[test]
fn writes_stop_while_the_server_promises_less_than_required() {
    let server = PostgresServer::start();
    let required = ["--require-durability", "synced"];
    let app = App::on_with(&server.url("postgres"), &required);
    assert_eq!(app.post(REX).status, 201);
    let ready = || app.probe("/readyz");
    let set = |value: &str| {
        server.sql("postgres", &format!("ALTER SYSTEM SET synchronous_commit = {value}"));
        server.sql("postgres", "SELECT pg_reload_conf()");
    };

    set("off");
    let not_ready = eventually("the service is not ready, without a write", || {
        Some(ready()).filter(|ready| ready.status == 503)
    });
    assert_eq!(not_ready.json()["reason"], "the storage engine promises less durability than required");
    for _ in 0..20 {
        app.post(REX).error(503, "unavailable");
    }
    assert_eq!(ready().status, 503);
    assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue");
    let printed = app.wait_for_log("promises less than required");
    assert_eq!(printed.matches("promises less than required").count(), 1, "one line: {printed}");
    assert!(printed.contains(r#"before="synced" now="buffered""#), "{printed}");

    set("on");
    wait_until("the service is ready again", || ready().status == 200);
    assert_eq!(app.post(REX).json()["id"], 2);
}
