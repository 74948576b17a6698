//! Requests and responses that are lost, delayed, repeated or rejected on their way: every acknowledged pet is stored once.

use std::time::Duration;

use application::PetStore;
use harness::{Gateway, HttpProxy, PutFault, all_pets, create, eventually_ok};

use super::{bucket, node_via, open};

/// A fault that an append survives, so that its client gets the pet.
async fn adds_one_pet(fault: PutFault, requests: usize) {
    let url = Gateway::shared().log();
    let proxy = HttpProxy::start(Gateway::shared().address()).await;
    let store = node_via(&proxy.endpoint(), &url).await;
    create(&store, "first").await.unwrap();
    proxy.disturb(fault, requests);
    let rex = create(&store, "Rex").await;
    assert_eq!(proxy.disturbed(), requests, "{fault:?}");
    let rex = rex.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
    assert_eq!(rex.id.get(), 2, "{fault:?}");
    create(&store, "third").await.unwrap();
    let names: Vec<_> =
        all_pets(&store).unwrap().iter().map(|pet| pet.details.name.as_str().to_owned()).collect();
    assert_eq!(names, ["first", "Rex", "third"], "{fault:?}");
    let log = open(&url).await;
    assert_eq!(log.head().await.map(|head| head.0), Ok(3), "{fault:?}: one commit for each pet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_lost_delayed_or_repeated_adds_exactly_one_pet() {
    tokio::join!(
        adds_one_pet(PutFault::LoseRequest, 2),
        adds_one_pet(PutFault::LoseResponse, 1),
        adds_one_pet(PutFault::Repeat, 1),
        adds_one_pet(PutFault::Delay(Duration::from_millis(700)), 1),
        adds_one_pet(PutFault::HideResponse, 1),
        adds_one_pet(PutFault::Reject, 3),
        adds_one_pet(PutFault::Conflict, 2),
    );
}

/// The client of the first append has given up, and another node has taken its place, when the request arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_after_its_place_was_taken_stores_nothing() {
    let url = Gateway::shared().log();
    let proxy = HttpProxy::start(Gateway::shared().address()).await;
    let late = node_via(&proxy.endpoint(), &url).await;
    create(&late, "first").await.unwrap();
    proxy.disturb(PutFault::Delay(Duration::from_secs(6)), usize::MAX);
    let delayed = {
        let late = late.clone();
        tokio::spawn(async move { create(&late, "delayed").await })
    };
    eventually_ok("the request is on its way", async || {
        (proxy.disturbed() > 0).then_some(()).ok_or("not yet")
    })
    .await;
    let other = node_via(&harness_endpoint(), &url).await;
    create(&other, "other").await.unwrap();
    let delayed = delayed.await.unwrap();
    proxy.heal();
    // Until the delayed requests have arrived.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let last = caught_up(&late, &other).await;
    assert_eq!(last.iter().filter(|name| *name == "other").count(), 1);
    let stored = last.iter().filter(|name| *name == "delayed").count();
    assert!(stored <= 1 && (delayed.is_err() || stored == 1), "{delayed:?}: {last:?}");
    let keys = Gateway::shared().keys(bucket(&url));
    assert_eq!(
        keys.iter().filter(|key| key.contains("/commits/")).count(),
        last.len(),
        "an object for each pet"
    );
}

fn harness_endpoint() -> String {
    format!("http://{}", Gateway::shared().address())
}

/// The names of all pets, once both nodes show the same.
async fn caught_up(one: &PetStore, other: &PetStore) -> Vec<String> {
    eventually_ok("both nodes show the same pets", async || {
        let pets = [one, other].map(|store| all_pets(store).unwrap());
        let names = || pets[0].iter().map(|pet| pet.details.name.as_str().to_owned()).collect();
        if pets[0] == pets[1] { Ok(names()) } else { Err(pets.map(|pets| pets.len())) }
    })
    .await
}

/// Faults of every kind while two nodes write.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_while_requests_of_two_nodes_are_disturbed() {
    let url = Gateway::shared().log();
    let proxies = [
        HttpProxy::start(Gateway::shared().address()).await,
        HttpProxy::start(Gateway::shared().address()).await,
    ];
    let mut nodes = Vec::new();
    for proxy in &proxies {
        nodes.push(node_via(&proxy.endpoint(), &url).await);
    }
    let mut acknowledged = Vec::new();
    for fault in [
        PutFault::LoseRequest,
        PutFault::LoseResponse,
        PutFault::Repeat,
        PutFault::Delay(Duration::from_millis(200)),
        PutFault::HideResponse,
        PutFault::Reject,
        PutFault::Conflict,
    ] {
        for proxy in &proxies {
            proxy.disturb(fault, 5);
        }
        for number in 0..10 {
            let names = [1, 2].map(|client| format!("{fault:?} {number} of {client}"));
            let (one, other) = tokio::join!(create(&nodes[0], &names[0]), create(&nodes[1], &names[1]));
            let created = [one, other].into_iter().flatten();
            acknowledged.extend(created.map(|pet| pet.details.name.as_str().to_owned()));
        }
    }
    let mut stored = caught_up(&nodes[0], &nodes[1]).await;
    assert!(acknowledged.iter().all(|name| stored.contains(name)), "nothing is lost");
    assert!(acknowledged.len() > 100, "{} creates succeed", acknowledged.len());
    let count = stored.len();
    stored.sort();
    stored.dedup();
    assert_eq!(stored.len(), count, "no request adds two pets");
}
