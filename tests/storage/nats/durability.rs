//! The durability of an acknowledged pet: checked by petstore, stated by the operator, or unknown.

use std::time::{Duration, Instant};

use adapters::event_log::nats::NatsLog;
use application::ports::{Durability, DurabilityLevel, Fault, LogSource as _};
use harness::{App, NatsCluster, NatsSync, REX, serve, wait_until};

use super::open_log;

#[tokio::test(flavor = "multi_thread")]
async fn the_durability_of_a_single_server_is_reported_truthfully() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let durability = promised(&cluster.url("PETS")).await;
    assert_eq!((durability.engine, durability.level), ("nats", DurabilityLevel::Buffered));
    assert!(
        durability.promise.contains("COMMITS MAY BE ACKNOWLEDGED BEFORE THEY ARE ON DISK"),
        "{durability:?}"
    );
    assert!(durability.promise.contains("ONE server"), "{durability:?}");
    assert_eq!(fact(&durability, "replicas"), "1");
    assert_eq!(fact(&durability, "storage"), "file");
    assert!(fact(&durability, "sync_interval").starts_with("UNKNOWN"), "{durability:?}");
    let checked = promised(&format!("{}?monitor={}", cluster.url("PETS"), cluster.monitors())).await;
    assert_eq!(checked.level, DurabilityLevel::Buffered);
    assert_eq!(fact(&checked, "sync_interval"), "120s (checked on n1)");
    let required = serve(&cluster.url("PETS"), &["--require-durability", "synced"]);
    required.exits_with(1).says("--require-durability");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_keep_three_copies_and_say_when_they_sync() {
    let cluster = NatsCluster::start(3, NatsSync::Always).await;
    let unknown = promised(&cluster.url("PETS")).await;
    assert_eq!(fact(&unknown, "replicas"), "3");
    assert_eq!(unknown.level, DurabilityLevel::Buffered, "what is not known is not promised");
    assert!(unknown.promise.contains("simultaneous power cut"), "{unknown:?}");
    let stated = promised(&format!("{}?sync=always", cluster.url("PETS"))).await;
    assert_eq!(stated.level, DurabilityLevel::Replicated);
    assert!(stated.promise.contains("stated by the operator, not checked"), "{stated:?}");
    let checked = promised(&format!("{}?monitor={}", cluster.url("PETS"), cluster.monitors())).await;
    assert_eq!(checked.level, DurabilityLevel::Replicated);
    assert_eq!(fact(&checked, "sync_interval"), "always (checked)");
    let single = promised(&format!("{}?replicas=1&sync=always", cluster.url("SINGLE"))).await;
    assert_eq!((fact(&single, "replicas"), single.level), ("1", DurabilityLevel::Synced));
    let two = cluster.monitors().rsplit_once(',').expect("three monitors").0.to_owned();
    let partly = promised(&format!("{}?monitor={two}", cluster.url("PETS"))).await;
    assert_eq!(partly.level, DurabilityLevel::Buffered, "one unknown server is enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_contradicts_the_operator_is_not_opened() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let url = format!("{}?sync=always&monitor={}", cluster.url("PETS"), cluster.monitors());
    let error = NatsLog::open(&url, None).await.err().expect("the server syncs later");
    assert_eq!(error.fault, Fault::CannotOpen);
    assert!(error.detail.contains("every 120s"), "{error}");
}

/// What a server said about itself no longer counts after this.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_with_less_or_unknown_durability_stops_writes() {
    let (mut cluster, app) = replicated().await;
    let reason = || app.probe("/readyz").json()["reason"].clone();
    for (old, new) in [("sync_interval: always", "sync_interval: 2m"), ("http: ", "#http: ")] {
        let leader = cluster.leader_of("PETS").await;
        for server in [leader, (leader + 1) % 3] {
            let changes = |change: &str| {
                app.printed().1.matches(&format!("the durability of the log has changed {change} ")).count()
            };
            let (lowered, raised) = (
                changes("before=\"replicated\" now=\"buffered\""),
                changes("before=\"buffered\" now=\"replicated\""),
            );
            cluster.servers[server].restart_with(old, new);
            let restarted = Instant::now();
            wait_until("writes stop", || {
                let stopped = reason() == "the storage engine promises less durability than required";
                if !stopped {
                    app.post(REX);
                }
                stopped
            });
            assert!(restarted.elapsed() < 2 * REPORT_AGE_MAX, "{new}: after {:?}", restarted.elapsed());
            app.post(REX).error(503, "unavailable");
            wait_until("the lower level is logged", || {
                changes("before=\"replicated\" now=\"buffered\"") > lowered
            });
            cluster.servers[server].restart_with(new, old);
            wait_until("writes resume", || app.post(REX).status == 201);
            wait_until("the higher level is logged", || {
                changes("before=\"buffered\" now=\"replicated\"") > raised
            });
        }
    }
}

/// The servers that are left have synced what they acknowledge, although the new leader has never heard from the old one.
#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_leader_does_not_lower_the_durability() {
    let (mut cluster, app) = replicated().await;
    let lost = cluster.leader_of("PETS").await;
    cluster.servers[lost].kill();
    wait_until("writes resume", || app.post(REX).status == 201);
    let resumed = Instant::now();
    while resumed.elapsed() < REPORT_AGE_MAX + Duration::from_secs(2) {
        app.add("Rex");
    }
    assert!(!app.printed().1.contains("the durability of the log has changed"), "{}", app.printed().1);
}

/// Without a leader nothing is acknowledged, so there is nothing to promise less for.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_does_not_lower_the_durability() {
    let (mut cluster, app) = replicated().await;
    cluster.servers[0].kill();
    cluster.servers[1].kill();
    wait_until("writes stop", || app.post(REX).status == 503);
    tokio::time::sleep(REPORT_AGE_MAX + Duration::from_secs(2)).await;
    app.post(REX).error(503, "unavailable");
    cluster.servers[0].start_again();
    wait_until("writes resume", || app.post(REX).status == 201);
    assert!(!app.printed().1.contains("the durability of the log has changed"), "{}", app.printed().1);
}

/// Three servers that sync what they acknowledge, and a service that requires it.
async fn replicated() -> (NatsCluster, App) {
    let cluster = NatsCluster::start(3, NatsSync::Always).await;
    let url = format!("{}?monitor={}", cluster.url("PETS"), cluster.monitors());
    let app = App::on_with(&url, &["--require-durability", "replicated"]);
    app.add("Rex");
    (cluster, app)
}

async fn promised(url: &str) -> Durability {
    open_log(url).await.durability()
}

fn fact<'a>(durability: &'a Durability, name: &str) -> &'a str {
    let fact = durability.settings.iter().find(|(fact, _)| fact == name);
    fact.map(|(_, value)| value.as_str()).expect("the fact is there")
}
