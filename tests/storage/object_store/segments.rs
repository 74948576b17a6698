//! Segments: readers use them, never need them, and no command trusts a damaged one.

use application::{
    Version,
    log::contract,
    ports::{EventLog as _, LogSource as _, Position, ReadBound},
};
use harness::{Gateway, eventually_ok};

use super::bucket;

const COMMITS: u64 = 2_100;

fn segments(url: &str) -> Vec<String> {
    Gateway::shared().keys(bucket(url)).into_iter().filter(|key| key.contains("/segments/")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_created_used_and_repaired() {
    let gateway = Gateway::shared();
    let url = gateway.url();
    let log = gateway.open(&url).await;
    let head = contract::fill(&log, Version::START, COMMITS).await;
    log.close().await;
    let created = segments(&url);
    let ranges: Vec<_> = created.iter().map(|key| key.rsplit('/').next().unwrap()[..41].to_owned()).collect();
    assert_eq!(
        ranges,
        ["00000000000000000001-00000000000000001000", "00000000000000001001-00000000000000002000"]
    );

    // Each single object but those of the open segment is gone: the segments alone serve a reader.
    let digest =
        gateway.petstore(&["log", "verify", "--store", &url]).exits_with(0).value("digest").to_owned();
    let first = gateway
        .keys(bucket(&url))
        .into_iter()
        .find(|key| key.ends_with("/commits/00000000000000000007"))
        .unwrap();
    let bytes = gateway.request("GET", &format!("{}/{first}", bucket(&url)), None);
    gateway.request("DELETE", &format!("{}/{first}", bucket(&url)), None);
    let exported = gateway.petstore(&["log", "export", "--store", &url]).exits_with(0);
    assert_eq!(exported.stdout.lines().count() as u64, COMMITS + 1, "a reader uses segments");
    gateway
        .petstore(&["log", "verify", "--store", &url])
        .exits_with(1)
        .says("the commit at position 7 is missing");
    gateway.request("PUT", &format!("{}/{first}", bucket(&url)), Some(&bytes));

    // A damaged segment is ignored.
    let segment = format!("{}/{}", bucket(&url), created[0]);
    let content = gateway.request("GET", &segment, None);
    let damaged = String::from_utf8(content).unwrap().replacen("pet 7", "cat 7", 1);
    gateway.request("PUT", &segment, Some(damaged.as_bytes()));
    let exported = gateway.petstore(&["log", "export", "--store", &url]).exits_with(0);
    assert_eq!(exported.stdout.lines().count() as u64, COMMITS + 1);
    assert!(!exported.stdout.contains("cat 7"), "a damaged segment is not used");

    // A missing segment is created by the next node.
    gateway.request("DELETE", &segment, None);
    let log = gateway.open(&url).await;
    eventually_ok("the segment is created again", async || {
        let found = segments(&url);
        if found == created { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(gateway.petstore(&["log", "verify", "--store", &url]).exits_with(0).value("digest"), digest);
    assert_eq!(log.head().await, Ok(head.position));
    let all = log.read(Position(998), ReadBound { records: 5, bytes: usize::MAX }).await.unwrap();
    assert_eq!(
        all.iter().map(|record| record.position.0).collect::<Vec<_>>(),
        [999, 1_000, 1_001, 1_002, 1_003]
    );
}
