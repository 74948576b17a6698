//! Several nodes on one log: each shows what the others have acknowledged, and no id is assigned twice.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use harness::{App, NatsCluster, NatsSync, PostgresServer, REX, eventually, ids, petstore, program};

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
fn inspecting_a_missing_log_does_not_create_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Always));
    for _ in 0..2 {
        let output = petstore(["log", "verify", "--store", &cluster.url("NOWHERE")]).exits_with(1);
        assert_eq!(output.stderr.trim().lines().count(), 1, "one sentence: {}", output.stderr);
    }
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
}
