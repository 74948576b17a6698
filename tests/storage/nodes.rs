//! Several nodes on one log: each shows what the others have acknowledged, and no id is assigned twice.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use harness::{
    App, NatsCluster, NatsSync, PostgresServer, REX, eventually, ids, petstore, program, serve, wait_until,
};
use serde_json::json;

/// Runs `check` with nodes on PostgreSQL, then with nodes on a JetStream cluster of three.
fn on_shared_engines(nodes: usize, check: impl Fn(&[App])) {
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let url = postgres.url(&database);
    check(&(0..nodes).map(|_| App::on(&url)).collect::<Vec<_>>());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(3, NatsSync::Always));
    let url = cluster.url("PETS");
    check(&(0..nodes).map(|_| App::on(&url)).collect::<Vec<_>>());
}

#[test]
fn a_client_that_sends_the_position_sees_the_write_of_another_node_at_once() {
    on_shared_engines(2, |nodes| {
        for _ in 0..10 {
            let created = nodes[0].post(REX);
            assert_eq!(created.status, 201, "{}", created.text());
            let position = created.header("log-position").unwrap();
            let path = created.header("location").unwrap();
            let get = nodes[1].call("GET", path).header("Log-Position", position);
            // On a busy machine a second may be too short, and then the client gets 503.
            let found = eventually("the other node shows it", || {
                Some(get.send()).filter(|found| found.status != 503)
            });
            assert_eq!((found.status, &found.body), (200, &created.body), "{}", found.text());
        }
        let ahead = nodes[1].call("GET", "/v1/pets").header("Log-Position", "1000000").send();
        ahead.error(503, "not_caught_up");
        assert!(ahead.header("retry-after").is_some());
    });
}

#[test]
fn four_nodes_that_write_at_once_lose_nothing_and_never_assign_the_same_id() {
    on_shared_engines(4, |nodes| {
        let acknowledged = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for node in nodes {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..10 {
                            let response = node.post(REX);
                            assert_eq!(response.status, 201, "{}", response.text());
                            let (position, _) =
                                response.header("log-position").unwrap().split_once('-').unwrap();
                            let position: u64 = position.parse().unwrap();
                            acknowledged
                                .lock()
                                .unwrap()
                                .push((response.json()["id"].as_i64().unwrap(), position));
                        }
                    });
                }
            }
        });
        let acknowledged = acknowledged.into_inner().unwrap();
        let given: BTreeSet<_> = acknowledged.iter().map(|(id, _)| *id).collect();
        assert_eq!(given.len(), 160, "every id is given once");
        let last = acknowledged.iter().map(|(_, position)| *position).max().unwrap().to_string();
        for node in nodes {
            assert_eq!(node.call("GET", "/v1/pets").header("Log-Position", &last).send().status, 200);
            assert_eq!(ids(&node.all_pets()), given.iter().copied().collect::<Vec<_>>(), "every pet");
        }
    });
}

#[test]
fn a_request_key_works_across_nodes() {
    on_shared_engines(2, |nodes| {
        // One API key on both nodes: the key file is what they share.
        let keys = std::fs::read(nodes[0].keys_file()).unwrap();
        std::fs::write(nodes[1].keys_file(), keys).unwrap();
        let send = |node: &App| {
            let call = node.anonymous("POST", "/v1/pets").key(&nodes[0].key);
            call.header("Idempotency-Key", "order-1").json(REX).send()
        };
        let first = send(&nodes[0]);
        let again = eventually("the changed key file is active", || {
            Some(send(&nodes[1])).filter(|again| again.status != 401)
        });
        assert_eq!((again.status, &again.body), (201, &first.body));
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        assert_eq!(ids(&nodes[0].all_pets()), [1]);
    });
}

#[test]
fn a_node_that_loses_its_engine_reports_it_keeps_serving_reads_and_recovers() {
    let mut server = PostgresServer::start();
    let database = server.create_database();
    let app = App::on(&server.url(&database));
    app.add("Rex");
    server.kill();
    // The server's processes do not end all at once: it may take a last pet.
    let rejected = eventually("a server that is gone takes no pets", || {
        let response = app.post(r#"{"name":"Bella","categoryId":7}"#);
        (response.status != 201).then_some(response)
    });
    rejected.error(503, "unavailable");
    assert!(rejected.header("retry-after").is_some());
    let wait_for = |status: u16| {
        wait_until(&format!("/readyz says {status}"), || app.probe("/readyz").status == status);
    };
    wait_for(503);
    assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue from memory");
    assert_eq!(app.probe("/livez").status, 200);
    server.start_again();
    wait_for(200);
    assert_eq!(app.post(r#"{"name":"Bella","categoryId":7}"#).status, 201, "without a restart");
}

#[test]
fn an_engine_that_acknowledges_too_early_is_reported_and_can_be_rejected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Default));
    let app = App::on(&cluster.url("PETS"));
    let ready = app.probe("/readyz").json();
    assert_eq!(
        (&ready["engine"], &ready["durability"]["level"]),
        (&json!("nats"), &json!("buffered")),
        "{ready}"
    );
    serve(&cluster.url("PETS"), &["--require-durability", "synced"])
        .exits_with(1)
        .says("--require-durability");
}

#[test]
fn inspecting_a_missing_log_does_not_create_it() {
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Always));
    for url in [postgres.url(&database), cluster.url("NOWHERE")] {
        for _ in 0..2 {
            let output = petstore(["log", "verify", "--store", &url]).exits_with(1);
            assert_eq!(output.stderr.trim().lines().count(), 1, "one sentence: {}", output.stderr);
        }
    }
}

#[test]
fn a_node_that_starts_before_its_engine_waits_for_it() {
    let mut server = PostgresServer::start();
    let url = server.url("postgres");
    server.kill();
    let mut app = App::stopped(&url, &[]);
    app.begin();
    app.wait_until_listening().expect("the service responds before its engine does");
    assert_eq!(app.probe("/livez").status, 200);
    let ready = app.probe("/readyz");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("starting")), "{}", ready.text());
    app.get("/v1/pets").error(503, "unavailable");
    server.start_again();
    app.wait_until_ready();
    app.add("Rex");
}

#[test]
fn tail_shows_the_last_commits_and_then_the_new_ones() {
    let server = PostgresServer::start();
    let app = App::on(&server.url("postgres"));
    for count in 1..=12 {
        app.add(&format!("pet {count}"));
    }
    let mut tail = Command::new(program())
        .args(["log", "tail", "--store", app.store()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(Result::unwrap);
    for count in 3..=12 {
        assert!(lines.next().unwrap().contains(&format!("\"pet {count}\"")));
    }
    app.add("Max");
    assert!(lines.next().unwrap().contains("\"Max\""));
    tail.kill().unwrap();
    tail.wait().unwrap();

    let embedded = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", embedded.path().join("log.db").display());
    assert_eq!(petstore(["log", "copy", "--from", app.store(), "--to", &store]).code, Some(0));
    let shown = petstore(["log", "tail", "--after", "11", "--store", &store]);
    assert_eq!((shown.code, shown.stdout.lines().count()), (Some(0), 2), "{shown:?}");
}
