//! An engine that hangs without closing its connections. The pets of a node may then be out of date, which its probes
//! report within six seconds, with and without creates.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use harness::{App, Gateway, NatsCluster, NatsSync, PostgresServer, REX, Running, eventually, wait_until};

/// How long the probes may take to report an engine that hangs.
const LIMIT: Duration = Duration::from_secs(6);
/// The age of the head at which a node is out of date.
const MAX_STALENESS: f64 = 5.0;
/// The time since the last confirmed head.
const UNSEEN: &str = "petstore_replica_unseen_seconds";

/// A node on this store, which other nodes may share.
fn node(store: &str, wrapper: &[String]) -> App {
    let mut app = App::stopped(store, &["--admin-listen", "127.0.0.1:0"]);
    app.run_by(wrapper);
    app.start_again();
    app
}

/// Ends the creates, also when a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets the engine hang twice, without and with creates.
fn is_reported_in_time<E>(app: &App, mut engine: E, hang: fn(&mut E), resume: fn(&mut E)) {
    assert_eq!(app.post(REX).status, 201);
    for creates in [false, true] {
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stopped);
            if creates {
                scope.spawn(|| {
                    while !stopped.load(Ordering::Relaxed) {
                        app.post(REX);
                    }
                });
                let before = app.get("/v1/pets").header("log-position").map(str::to_owned);
                wait_until("there are creates", || {
                    app.get("/v1/pets").header("log-position").map(str::to_owned) != before
                });
            }
            hang(&mut engine);
            let begun = Instant::now();
            for probe in ["/readyz/reads", "/readyz/writes", "/readyz"] {
                let reported = eventually("the hanging engine is reported", || {
                    Some(app.probe(probe)).filter(|report| report.status == 503)
                });
                let after = begun.elapsed();
                assert!(after <= LIMIT, "{probe} took {after:?}, with creates: {creates}");
                assert_eq!(reported.json()["reason"], "the storage engine does not respond");
            }
            app.wait_for_log("not ready");
            let unseen = app.metric(UNSEEN);
            assert!(unseen >= MAX_STALENESS, "the metric says {unseen} s");
            assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue");
            resume(&mut engine);
            app.wait_until_ready();
            app.wait_for_log("ready again");
            let unseen = app.metric(UNSEEN);
            assert!(unseen < MAX_STALENESS, "the metric says {unseen} s");
        });
    }
}

#[test]
fn a_frozen_postgresql_is_reported_within_six_seconds() {
    let server = PostgresServer::start();
    let app = node(&server.url("postgres"), &[]);
    is_reported_in_time(&app, server, PostgresServer::freeze, PostgresServer::thaw);
}

#[test]
fn a_locked_table_is_reported_within_six_seconds() {
    let server = PostgresServer::start();
    let app = node(&server.url("postgres"), &[]);
    let lock = |(server, session): &mut (PostgresServer, Option<Running>)| {
        *session = Some(server.lock("postgres"));
    };
    is_reported_in_time(&app, (server, None), lock, |(server, _)| server.unlock("postgres"));
}

#[test]
fn frozen_object_storage_is_reported_within_six_seconds() {
    let gateway = Gateway::start();
    let app = node(&gateway.log(), &gateway.wrapper());
    is_reported_in_time(&app, gateway, |gateway| gateway.freeze(), |gateway| gateway.thaw());
}

#[test]
fn a_frozen_jetstream_is_reported_within_six_seconds() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Always));
    let app = node(&cluster.url("PETS"), &[]);
    is_reported_in_time(
        &app,
        cluster,
        |cluster| cluster.servers[0].freeze(),
        |cluster| cluster.servers[0].thaw(),
    );
}

/// A create that times out because its node reads commits of another node from a locked table first.
#[test]
fn the_first_create_that_fails_behind_a_lock_is_explained_in_the_log() {
    let server = PostgresServer::start();
    let [app, other] = [(), ()].map(|()| node(&server.url("postgres"), &[]));
    assert_eq!(other.post(REX).status, 201);
    let _session = server.lock("postgres");
    app.post(REX).error(503, "unavailable");
    let log = app.wait_for_log("another session may hold a lock (see pg_stat_activity)");
    assert!(log.contains("no reply within ") && !log.contains("was lost"), "{log}");
    server.unlock("postgres");
    app.wait_until_ready();
}

/// A node that may read and not write says so from the start, without a create, and recovers when it may write.
fn is_ready_for_reads_only(mut app: App, words: &str, allow: impl FnOnce()) {
    app.begin();
    app.wait_until_listening().unwrap();
    wait_until("the node is ready for reads", || app.probe("/readyz/reads").status == 200);
    for probe in ["/readyz/writes", "/readyz"] {
        let report = app.probe(probe);
        assert_eq!(report.status, 503, "{probe}");
        assert_eq!(report.json()["reason"], "a write to storage failed", "{probe}");
    }
    app.post(REX).error(503, "unavailable");
    assert_eq!(app.get("/v1/pets").status, 200);
    app.wait_for_log(words);
    allow();
    app.wait_until_ready();
    assert_eq!(app.post(REX).status, 201);
}

#[test]
fn a_node_that_may_not_insert_into_postgresql_is_not_ready_for_writes() {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE ROLE shop LOGIN PASSWORD 'shop'");
    drop(node(&server.url("postgres"), &[]));
    server.sql("postgres", "GRANT SELECT ON petstore_commits, petstore_schema TO shop");
    let app = App::stopped(&format!("postgres://shop:shop@{}/postgres", server.address()), &[]);
    is_ready_for_reads_only(app, "permission denied for table petstore_commits", || {
        server.sql("postgres", "GRANT INSERT ON petstore_commits TO shop");
    });
    assert_eq!(server.sql("postgres", "SELECT count(*) FROM petstore_commits"), "1", "no probe was stored");
}

#[test]
fn a_node_that_may_not_create_objects_is_not_ready_for_writes() {
    let gateway = Gateway::shared();
    let url = gateway.log();
    let bucket = url.split('/').nth(2).unwrap();
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Deny","Principal":"*","Action":"s3:PutObject",
            "Resource":"arn:aws:s3:::{bucket}/*"}}]}}"#
    );
    gateway.request("PUT", &format!("{bucket}?policy="), Some(policy.as_bytes()));
    let mut app = App::stopped(&url, &[]);
    app.run_by(&gateway.wrapper());
    is_ready_for_reads_only(app, "rejected PUT pets/log.json (403 AccessDenied)", || {
        gateway.request("DELETE", &format!("{bucket}?policy="), None);
    });
}

#[test]
fn a_node_that_may_not_publish_to_jetstream_is_not_ready_for_writes() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let denied = "publish: { deny: [\"petstore.PETS.commits\"] }";
    let users = format!(
        "authorization {{ users: [ {{ user: all, password: all }}, \
         {{ user: shop, password: shop, permissions: {{ {denied} }} }} ] }}"
    );
    let cluster = runtime.block_on(NatsCluster::start_with(1, NatsSync::Always, &users));
    let url = |user: &str| cluster.url("PETS").replace("nats://", &format!("nats://{user}:{user}@"));
    drop(node(&url("all"), &[]));
    let app = App::stopped(&url("shop"), &[]);
    is_ready_for_reads_only(app, "allow the user to publish on petstore.PETS.commits", || {
        cluster.servers[0].reconfigure(denied, "publish: { allow: [\">\"] }");
    });
}
