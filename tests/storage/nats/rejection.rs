//! What is rejected at the start or later, and with which message.

use std::time::Duration;

use adapters::event_log::nats::NatsLog;
use application::{
    log::contract,
    ports::{Fault, LogError, Position, Version},
};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use harness::{App, NatsCluster, NatsSync};

use super::open;

type Change = fn(&mut Config);

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_stream_is_named_as_the_cause() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let app = App::on(&cluster.url("PETS"));
    app.add("Rex");
    cluster.jetstream().await.delete_stream("PETS").await.expect("every client may delete it");
    let log = app.wait_for_log("stream PETS was deleted; restore it from a backup");
    assert!(!log.contains("connecting to another server"), "{log}");
    let reason = app.wait_until_not_ready().json()["reason"].clone();
    assert_eq!(reason, "the log lacks commits that this node has applied");
    assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_unsuitable_settings_is_rejected() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let jetstream = cluster.jetstream().await;
    let cases: [(&str, Change); 9] = [
        ("its only subject", |config| config.subjects.push("more.>".into())),
        ("retention", |config| config.retention = RetentionPolicy::WorkQueue),
        ("storage", |config| config.storage = StorageType::Memory),
        ("max_msgs must", |config| config.max_messages = 1_000_000),
        ("max_bytes", |config| config.max_bytes = 1_000_000_000),
        ("max_age", |config| config.max_age = Duration::from_hours(24 * 365)),
        ("discard", |config| config.discard = DiscardPolicy::Old),
        ("deny_delete", |config| config.deny_delete = false),
        ("first_seq", |config| config.first_sequence = Some(1_000)),
    ];
    for (number, (rule, spoil)) in cases.into_iter().enumerate() {
        let name = format!("FOREIGN{number}");
        let mut config = sound_config(&name);
        spoil(&mut config);
        jetstream.create_stream(config).await.expect("the server accepts such a stream");
        let error = rejected(&cluster.url(&name)).await;
        assert_eq!(error.fault, Fault::CannotOpen, "{error}");
        assert!(error.detail.contains(rule) && error.detail.contains(&name), "{rule}: {error}");
    }
    jetstream.create_stream(sound_config("FINE")).await.expect("the server accepts such a stream");
    open(&cluster.url("FINE")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lost_a_message_is_reported_as_damaged() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let jetstream = cluster.jetstream().await;
    let mut config = sound_config("HOLED");
    config.deny_delete = false;
    let stream = jetstream.create_stream(config).await.expect("the server accepts such a stream");
    for _ in 0..3 {
        let stored = jetstream.publish("petstore.HOLED.commits", "x".into()).await.expect("it is sent");
        stored.await.expect("it is stored");
    }
    stream.delete_message(2).await.expect("a message can be deleted");
    jetstream.update_stream(sound_config("HOLED")).await.expect("deletes can be denied from now on");
    let error = rejected(&cluster.url("HOLED")).await;
    assert_eq!(error.fault, Fault::Damaged, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_log_is_reported_once_and_then_read() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let log = open(&cluster.url("PETS")).await;
    contract::fill(&*log, Version::START, 3).await;
    cluster.jetstream().await.delete_stream("PETS").await.expect("a stream can be deleted");
    assert_eq!(log.head().await.expect_err("there is no stream").fault, Fault::Unreachable);
    let other = open(&cluster.url("PETS")).await;
    contract::fill(&*other, Version::START, 1).await;
    assert_eq!(log.head().await.expect_err("it is another log").fault, Fault::Diverged);
    assert_eq!(log.head().await, Ok(Position(1)));
}

/// The settings that petstore itself gives a stream, as another client would write them.
fn sound_config(name: &str) -> Config {
    Config {
        name: name.into(),
        subjects: vec![format!("petstore.{name}.commits")],
        discard: DiscardPolicy::New,
        deny_delete: true,
        deny_purge: true,
        ..Config::default()
    }
}

async fn rejected(url: &str) -> LogError {
    NatsLog::open(url, None).await.err().expect("this is rejected")
}
