//! A JetStream account that has used up its storage: the service says so until there is room again.

use harness::{App, NatsCluster, NatsSync, REX, eventually, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_account_stops_writes_until_it_has_room_again() {
    let accounts =
        "accounts { SHOP { jetstream: { max_file: 40000 }, users: [{ user: shop, password: shop }] } }";
    let cluster = NatsCluster::start_with(1, NatsSync::Default, accounts).await;
    let store = format!("nats://shop:shop@{}/PETS?replicas=1", cluster.addresses());
    let app = App::on(&store);
    let not_ready = || {
        let ready = app.probe("/readyz");
        (ready.status == 503).then(|| ready.json()["reason"].clone())
    };
    let reason = eventually("the account is full", || {
        let status = app.post(REX).status;
        assert!([201, 503].contains(&status), "{status}");
        not_ready()
    });
    assert_eq!(reason, "the storage is full");
    for _ in 0..50 {
        app.post(REX).error(503, "unavailable");
        assert_eq!(not_ready().as_ref(), Some(&reason));
    }
    let printed = app.wait_for_log("not ready");
    assert_eq!(printed.matches("not ready").count(), 1, "one line for the change: {printed}");

    cluster.servers[0].reconfigure("max_file: 40000", "max_file: 4000000");
    wait_until("the service is ready, without a write", || not_ready().is_none());
    wait_until("pets are taken again", || app.post(REX).status == 201);
}
