//! Messages that petstore has not published, or not as they are stored: the service names and rejects them, and the log can
//! be moved.

use application::{log::contract, ports::Version};
use async_nats::HeaderMap;
use harness::{App, NatsCluster, NatsSync, REX, ids, petstore};

use super::open_log;

const COMMITS: &str = "petstore.PETS.commits";

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_message_is_named_and_salvage_moves_the_log_to_a_new_stream() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let (store, new) = (cluster.url("PETS"), cluster.url("PETS2"));
    let mut app = App::on(&store);
    for _ in 0..2 {
        assert_eq!(app.post(REX).status, 201);
    }
    let jetstream = cluster.jetstream().await;
    let stray = jetstream.publish(COMMITS, "hello".into()).await.expect("every client may publish");
    stray.await.expect("it is stored");

    let reason = app.wait_until_not_ready().json()["reason"].clone();
    assert_eq!(reason, "another program has written to the log");
    app.post(REX).error(503, "unavailable");
    assert_eq!(ids(&app.all_pets()), [1, 2], "reads continue");
    app.wait_for_log("position 3 of stream PETS was not published by petstore");

    app.terminate();
    petstore(["log", "salvage", "--from", &store, "--to", &new]).exits_with(3);
    petstore(["log", "salvage", "--accept-gaps", "--from", &store, "--to", &cluster.url("AROUND")])
        .exits_with(3)
        .prints("unreadable  3\n");
    app.use_store(&new);
    app.start_again();
    assert_eq!(ids(&app.all_pets()), [1, 2]);
    assert_eq!(app.post(REX).json()["id"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_commit_id_disagrees_with_its_record_is_rejected() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let (store, new) = (cluster.url("PETS"), cluster.url("PETS2"));
    let log = open_log(&store).await;
    let head = contract::fill(&log, Version::START, 2).await;
    let record = contract::record_after(contract::head_hash(&log, head.position).await, 3);
    let mut app = App::on(&store);
    let pets = ids(&app.all_pets());

    let other = contract::record(3).id;
    let mut headers = HeaderMap::new();
    headers.insert("Petstore-Commit-Id", other.0.to_string());
    let jetstream = cluster.jetstream().await;
    let published = jetstream.publish_with_headers(COMMITS, headers, record.bytes).await;
    published.expect("it is sent").await.expect("it is stored");

    let ids_differ = format!(
        "the commit at position 3 is stored with the id {}, but its record has {}",
        other.0, record.id.0
    );
    let reason = app.wait_until_not_ready().json()["reason"].clone();
    assert_eq!(reason, "the log is damaged");
    app.post(REX).error(503, "unavailable");
    assert_eq!(ids(&app.all_pets()), pets, "reads continue");
    app.wait_for_log(&ids_differ);

    app.terminate();
    app.try_start_again().expect_err("a damaged log is not served").exits_with(1).says(&ids_differ);
    petstore(["log", "copy", "--from", &store, "--to", &cluster.url("COPY")]).exits_with(1).says(&ids_differ);
    petstore(["log", "salvage", "--accept-gaps", "--from", &store, "--to", &cluster.url("AROUND")])
        .exits_with(3)
        .prints("unreadable  3\n");
    petstore(["log", "salvage", "--from", &store, "--to", &new]).exits_with(3);
    app.use_store(&new);
    app.start_again();
    assert_eq!(ids(&app.all_pets()), pets);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_documented_permissions_only_petstore_can_publish() {
    let users = "authorization { users: [ \
                 { user: petstore, password: p }, \
                 { user: others, password: o, permissions: { publish: { deny: \"petstore.>\" } } } ] }";
    let cluster = NatsCluster::start_with(1, NatsSync::Default, users).await;
    let store = format!("nats://petstore:p@{}/PETS", cluster.addresses());
    let app = App::on(&store);
    assert_eq!(app.post(REX).status, 201);
    let others = async_nats::ConnectOptions::with_user_and_password("others".into(), "o".into());
    let others = others.connect(cluster.addresses()).await.expect("others may connect");
    others.publish(COMMITS, "hello".into()).await.expect("it is sent");
    others.flush().await.expect("the server has it");
    for id in 2..=5 {
        assert_eq!(app.post(REX).json()["id"], id, "nothing came in between");
    }
}
