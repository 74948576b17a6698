//! Connections that break at the worst moment: each pet exists exactly once.

use harness::{CutProxy, NatsCluster, NatsSync, all_pets, create};

use super::{open, open_store};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_adds_exactly_one_pet() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let proxy = CutProxy::start(cluster.servers()[0].address()).await;
    let store = open_store(&format!("nats://{}/PETS", proxy.address())).await;
    proxy.lose_the_response_to("Rex");
    let created = create(&store, "Rex").await.expect("the store finds out that Rex is stored");
    assert_eq!(proxy.lost_responses(), 1, "the acknowledgement was lost");
    assert_eq!(created.id.get(), 1);
    assert_eq!(all_pets(&store), Ok(vec![created]), "there is one Rex");
    let log = open(&cluster.url("PETS")).await;
    assert_eq!(log.head().await.map(|head| head.0), Ok(1), "the log holds one commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_heals_without_a_restart() {
    let cluster = NatsCluster::start(1, NatsSync::Default).await;
    let proxy = CutProxy::start(cluster.servers()[0].address()).await;
    let store = open_store(&format!("nats://{}/PETS", proxy.address())).await;
    create(&store, "Rex").await.expect("the log is there");
    proxy.freeze();
    let lost = create(&store, "Tom").await;
    assert!(lost.is_err(), "nobody can be told that Tom is stored: {lost:?}");
    assert_eq!(all_pets(&store).map(|pets| pets.len()), Ok(1), "reads go on");
    proxy.cut();
    proxy.heal();
    while let Err(error) = create(&store, "Kit").await {
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }
    let pets = all_pets(&store).expect("the store can be read");
    let names: Vec<_> = pets.iter().map(|pet| pet.details.name.as_str()).collect();
    assert!(names == ["Rex", "Tom", "Kit"] || names == ["Rex", "Kit"], "each at most once: {names:?}");
}
