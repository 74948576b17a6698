//! Segments: readers use them, never need them, and no command trusts a damaged one.

use application::{
    log::{commit::Entry, contract},
    ports::{EventLog as _, LogSource as _, Position, ReadBound},
};
use domain::test_values::{self, numbered};
use harness::{Gateway, added, eventually_ok, history};

use super::{bucket, object_of};

/// A segment of such commits ends when it has reached eight MiB.
const COMMITS: u64 = 60;
const PETS: i64 = 3_000;

fn segments(url: &str) -> Vec<String> {
    Gateway::shared().keys(bucket(url)).into_iter().filter(|key| key.contains("/segments/")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_created_used_checked_and_repaired() {
    let gateway = Gateway::shared();
    let url = gateway.url();
    let log = gateway.open(&url).await;
    let entry =
        |id: i64| Entry { event: test_values::added(id, numbered(id.cast_unsigned())), ..added(id, "Rex") };
    let head = contract::append_all(&log, history(COMMITS, PETS, entry)).await;
    log.close().await;
    let created = segments(&url);
    assert!(created.len() > 1, "{created:?}");
    let range = created[0].rsplit('/').next().unwrap();
    let last: u64 = range[21..41].parse().unwrap();
    assert!(range.starts_with("00000000000000000001-") && last < COMMITS, "{range}");
    assert!(created[1].contains(&format!("/{:020}-", last + 1)), "segments are contiguous: {created:?}");
    let head_hash =
        gateway.petstore(&["log", "verify", "--store", &url]).exits_with(0).value("head hash").to_owned();

    // A reader uses the segment, and does not notice that an object in it is missing. A check does.
    let keys = gateway.keys(bucket(&url));
    let seventh = object_of(&url, 7);
    let bytes = gateway.request("GET", &seventh, None);
    gateway.request("DELETE", &seventh, None);
    let export = || gateway.petstore(&["log", "export", "--store", &url]).exits_with(0).stdout;
    assert_eq!(export().lines().count() as u64, COMMITS + 1, "the commits and the manifest");
    let missing = "the commit at position 7 is missing";
    gateway.petstore(&["log", "verify", "--store", &url]).exits_with(1).says(missing);
    gateway.request("PUT", &seventh, Some(&bytes));

    // A segment that continues after the last commit is not a log that ends there.
    let after_a_segment = |key: &&String| {
        let position = key.split_once("/commits/").map(|(_, position)| position.parse::<u64>().unwrap());
        position.is_some_and(|position| position >= last)
    };
    let removed: Vec<_> =
        keys.iter().filter(after_a_segment).map(|key| format!("{}/{key}", bucket(&url))).collect();
    let contents: Vec<_> = removed.iter().map(|key| gateway.request("GET", key, None)).collect();
    for key in &removed {
        gateway.request("DELETE", key, None);
    }
    let ends = format!("the log ends before position {last}, but a commit was stored there");
    gateway.petstore(&["log", "export", "--store", &url]).exits_with(1).says(&ends);
    for (key, content) in removed.iter().zip(&contents) {
        gateway.request("PUT", key, Some(content));
    }

    // A damaged segment is ignored.
    let segment = format!("{}/{}", bucket(&url), created[0]);
    let content = String::from_utf8(gateway.request("GET", &segment, None)).unwrap();
    let damaged = content.replacen(r#""name":"pet"#, r#""name":"cat"#, 1);
    gateway.request("PUT", &segment, Some(damaged.as_bytes()));
    let exported = export();
    assert_eq!(exported.lines().count() as u64, COMMITS + 1);
    assert!(!exported.contains(r#""name":"cat"#), "a damaged segment is not used");

    // A missing segment is created by the next node.
    gateway.request("DELETE", &segment, None);
    let log = gateway.open(&url).await;
    eventually_ok("the segment is created again", async || {
        let found = segments(&url);
        if found == created { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(
        gateway.petstore(&["log", "verify", "--store", &url]).exits_with(0).value("head hash"),
        head_hash
    );
    assert_eq!(log.head().await, Ok(head.position));
    let across = log.read(Position(last - 2), ReadBound { records: 5, bytes: usize::MAX }).await.unwrap();
    let positions: Vec<_> = across.iter().map(|record| record.position.0).collect();
    assert!(positions.starts_with(&[last - 1, last]), "{positions:?}");
}
