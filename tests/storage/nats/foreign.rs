//! A foreign message on the subject of the stream: it is named as such, and the log can be salvaged.

use harness::{App, NatsCluster, NatsSync, eventually, ids, petstore};

const REX: &str = r#"{"name": "Rex", "categoryId": 1}"#;
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
    let stray = jetstream.publish(COMMITS, "hello".into()).await.expect("anybody may publish");
    stray.await.expect("it is stored");

    let reason = eventually("the service is not ready", || {
        let ready = app.anonymous("GET", "/readyz").send();
        (ready.status == 503).then(|| ready.json()["reason"].clone())
    });
    assert_eq!(reason, "another program has written to the log");
    app.post(REX).error(503, "unavailable");
    assert_eq!(ids(&app.all_pets()), [1, 2], "reads continue");
    app.wait_for_log("position 3 of stream PETS was not published by petstore");

    app.terminate();
    let salvaged = petstore(["log", "salvage", "--from", &store, "--to", &new]);
    assert_eq!(salvaged.code, Some(0), "{salvaged:?}");
    let around =
        petstore(["log", "salvage", "--accept-gaps", "--from", &store, "--to", &cluster.url("AROUND")]);
    assert_eq!(around.code, Some(0), "{around:?}");
    assert!(around.stdout.contains("unreadable  3\n"), "it counts as a gap: {}", around.stdout);
    app.use_store(&new);
    app.start_again();
    assert_eq!(ids(&app.all_pets()), [1, 2]);
    assert_eq!(app.post(REX).json()["id"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_documented_permissions_nobody_else_can_publish() {
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
