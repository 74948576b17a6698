//! Three nodes behind nginx, one of them frozen: requests are delayed, but none fails, and none adds two pets.

use std::{
    collections::HashMap,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use harness::{App, Call, PostgresServer, eventually, free_port, number};

use super::{deployment::nginx_with, rolling_restart::node};

/// How long the node is frozen, unless `TEST_FROZEN_SECONDS` says otherwise.
const FROZEN: Duration = Duration::from_secs(7);
/// The most that the frozen node may cost a request that can be sent to another node.
const DELAY_MAX: Duration = Duration::from_secs(3);
/// How many clients send requests of each kind.
const CLIENTS: usize = 3;

/// What clients sent while a node was frozen.
#[derive(Default)]
struct Sent {
    /// Names of pets, and whether each was acknowledged.
    creates: HashMap<String, bool>,
    /// The longest time of each kind of request.
    longest: [Duration; 3],
}

/// A list, a create with an `Idempotency-Key`, and a create without one, which nginx must not repeat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    WithKey,
    Once,
}

#[test]
fn a_frozen_node_behind_nginx_delays_requests_and_fails_none() {
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let store = postgres.url(&database);
    let first = node(&store, free_port(), None);
    let others = [(), ()].map(|()| node(&store, free_port(), Some(&first)));
    let nodes: Vec<_> = [first].into_iter().chain(others).collect();
    let directory = tempfile::tempdir().unwrap();
    let (balanced, http) = (free_port(), free_port());
    let server = |node: &App| format!("server {} max_fails=3 fail_timeout=3s;", node.address());
    let servers = nodes.iter().map(server).collect::<String>();
    // The clients of this test speak plain HTTP.
    let changes =
        [("server 127.0.0.1:8080 max_fails=3 fail_timeout=3s;", servers.as_str()), (" ssl http2;", ";")];
    let _nginx = nginx_with(directory.path(), balanced, http, &changes);
    let address = ([127, 0, 0, 1], balanced).into();
    let key = nodes[0].key.clone();
    let call = |method: &str| Call::new(address, method, "/v1/pets").key(&key);
    eventually("nginx responds", || (call("GET").try_send()?.status == 200).then_some(()));
    // nginx has open connections to every node.
    for count in 0..9 {
        let created = call("POST").json(format!(r#"{{"name":"first {count}","categoryId":7}}"#)).send();
        assert_eq!(created.status, 201, "{}", created.text());
    }

    let create = |name: &str| call("POST").json(format!(r#"{{"name":"{name}","categoryId":7}}"#));
    let sent = Mutex::new(Sent::default());
    nodes[1].signal("STOP");
    let end = Instant::now() + number("TEST_FROZEN_SECONDS").map_or(FROZEN, Duration::from_secs);
    let repeat = |kind: Kind, client: usize| {
        for count in (0..).take_while(|_| Instant::now() < end) {
            let name = format!("{}-{client}-{count}", kind as usize);
            let request = match kind {
                Kind::List => call("GET"),
                Kind::WithKey => create(&name).header("Idempotency-Key", &name),
                Kind::Once => create(&name),
            };
            let begin = Instant::now();
            let response = request.send();
            let acknowledged = [200, 201].contains(&response.status);
            if !acknowledged {
                // A create without a key waits for the frozen node, and may end with an error.
                response.error(503, "unavailable");
                assert!(kind == Kind::Once, "{}", response.text());
            }
            let mut sent = sent.lock().unwrap();
            let longest = &mut sent.longest[kind as usize];
            *longest = begin.elapsed().max(*longest);
            if kind != Kind::List {
                sent.creates.insert(name, acknowledged);
            }
        }
    };
    thread::scope(|scope| {
        let repeat = &repeat;
        for client in 0..CLIENTS {
            for kind in [Kind::List, Kind::WithKey, Kind::Once] {
                scope.spawn(move || repeat(kind, client));
            }
        }
        thread::sleep(end.saturating_duration_since(Instant::now()));
        nodes[1].signal("CONT");
    });

    let Sent { creates, longest } = sent.into_inner().unwrap();
    println!(
        "{} creates; the longest list, create with a key, create without one: {longest:?}",
        creates.len()
    );
    // The node that was frozen has nothing left to write when it has served a request that came after all others.
    let last = nodes[1].call("POST", "/v1/pets").header("Idempotency-Key", "last");
    let last = last.json(r#"{"name":"last","categoryId":7}"#).send();
    assert_eq!(last.status, 201, "{}", last.text());
    let mut added = HashMap::<_, u32>::new();
    for pet in nodes[1].all_pets() {
        *added.entry(pet["name"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    for (name, acknowledged) in &creates {
        let count = added.get(name).copied().unwrap_or_default();
        assert!(count == 1 || (count == 0 && !acknowledged), "{name} was added {count} times");
    }
    for longest in &longest[..2] {
        assert!(*longest < DELAY_MAX, "{longest:?}");
        assert!(*longest > Duration::from_secs(1), "no request reached the frozen node: {longest:?}");
    }
    drop(nodes);
    for method in ["GET", "POST"] {
        let unavailable = call(method).send();
        unavailable.error(503, "unavailable");
        assert_eq!(unavailable.header("retry-after"), Some("1"));
    }
}
