//! A PostgreSQL server that responds and rejects commits: the service reports it until commits succeed again.

use harness::{App, PostgresServer, REX, eventually, wait_until};

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
