//! A stream whose settings are changed while the service runs: no pet is acknowledged that the stream may drop.

use std::time::Duration;

use async_nats::jetstream::{Context, stream::Config};
use harness::{App, CutProxy, NatsCluster, NatsSync, REX, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn writing_stops_while_a_stream_may_drop_commits_and_resumes_when_it_is_corrected() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let app = App::on(&cluster.url("PETS"));
    assert_eq!(app.post(REX).status, 201);
    let jetstream = cluster.jetstream().await;

    set(&jetstream, |config| config.max_age = Duration::from_hours(1)).await;

    wait_until("the service is not ready", || app.get("/readyz").status == 503);
    for _ in 0..5 {
        assert_eq!(app.post(REX).status, 503, "a pet that may be dropped is not acknowledged");
    }
    assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue");
    app.wait_for_log("max_age must be unlimited");

    set(&jetstream, |config| config.max_age = Duration::ZERO).await;

    app.wait_until_ready();
    assert_eq!(app.post(REX).status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_are_checked_after_a_reconnect_before_anything_is_written() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let proxy = CutProxy::start(cluster.servers[0].address()).await;
    let app = App::on(&format!("nats://{}/PETS", proxy.address()));
    assert_eq!(app.post(REX).status, 201);
    proxy.refuse();
    set(&cluster.jetstream().await, |config| config.max_age = Duration::from_hours(1)).await;
    proxy.heal();
    wait_until("the service has found the server again and looked at the stream", || {
        let response = app.post(REX);
        assert_eq!(response.status, 503, "nothing is written before the settings were checked: {response:?}");
        app.printed().1.contains("max_age must be unlimited")
    });
}

async fn set(jetstream: &Context, change: impl FnOnce(&mut Config)) {
    let stream = jetstream.get_stream("PETS").await.expect("the stream is there");
    let mut config = stream.cached_info().config.clone();
    change(&mut config);
    jetstream.update_stream(config).await.expect("the server accepts such a stream");
}
