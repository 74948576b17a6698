//! Messages that petstore has not published: the service names and rejects them, and the log can be moved.

use harness::{App, NatsCluster, NatsSync, REX, ids, petstore};

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
