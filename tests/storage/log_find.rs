//! `petstore log find`: the history shows who added which pet and when.

use harness::{App, Finished, petstore};
use serde_json::Value;

fn find(app: &App, filter: &[&str]) -> Finished {
    petstore(["log", "find", "--store", app.store()].iter().chain(filter))
}

/// The ids of the pets in lines of JSON.
fn found(app: &App, filter: &[&str]) -> Vec<i64> {
    let found = find(app, &[filter, &["--json"]].concat()).exits_with(0);
    let lines = found.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|event| event["pet"]["id"].as_i64().unwrap()).collect()
}

/// The owner of the key with this name.
fn owner(app: &App, name: &str) -> String {
    let list = petstore(["keys", "list", "--keys", app.keys_file().to_str().unwrap()]).stdout;
    let row = list.lines().find(|row| row.ends_with(&format!(" {name}"))).unwrap();
    row.split_whitespace().nth(1).unwrap().to_owned()
}

/// Three pets: two by the key of the test, the last of them under an idempotency key, and one by a visitor.
#[test]
fn events_are_found_by_pet_owner_request_key_and_time() {
    let mut app = App::on_engine("sled", &[]);
    let visitor = app.issue_key(&["--name", "visitor"]);
    assert_eq!(app.post(r#"{"name":"Rex","categoryId":7,"status":"sold"}"#).status, 201);
    // A name that would turn the rest of a line around.
    let hostile = r#"{"name":"a\u202eb\"c","categoryId":-1}"#;
    assert_eq!(
        app.call("POST", "/v1/pets").header("Idempotency-Key", "k-1").json(hostile).send().status,
        201
    );
    // The service learns about a new key within two seconds.
    let bearer = format!("Bearer {visitor}");
    let create = app.anonymous("POST", "/v1/pets").header("Authorization", &bearer);
    harness::wait_until("the key is accepted", || {
        create.clone().json(r#"{"name":"Tom","categoryId":7}"#).send().status == 201
    });
    app.terminate();

    let (test, visitor) = (owner(&app, "test"), owner(&app, "visitor"));
    assert_eq!(found(&app, &["--pet", "3"]), [3]);
    assert_eq!(found(&app, &["--by", &test]), [1, 2]);
    assert_eq!(found(&app, &["--by", &visitor]), [3]);
    let keys = app.keys_file();
    let by = |name| ["--keys", keys.to_str().unwrap(), "--by", name];
    assert_eq!(found(&app, &by("test")), [1, 2]);
    find(&app, &by("nobody")).exits_with(1).says("no key has this id or name");
    app.issue_key(&["--name", "test"]);
    find(&app, &by("test")).exits_with(1).says("use one of their owners instead: ").says(&test);
    assert_eq!(found(&app, &["--idempotency-key", "k-1"]), [2]);
    assert_eq!(found(&app, &[]), [1, 2, 3]);
    assert_eq!(found(&app, &["--since", "1h"]), [1, 2, 3]);
    assert_eq!(found(&app, &["--since", "2026-01-01", "--by", &test, "--pet", "1"]), [1]);
    for nothing in [["--since", "9999-01-01T00:00:00Z"], ["--pet", "4"], ["--idempotency-key", "K-1"]] {
        let found = find(&app, &nothing);
        assert_eq!((found.code, found.stdout.as_str()), (Some(1), ""), "{nothing:?}");
        assert!(found.stderr.contains("no event") && found.stderr.contains("matches"), "{found:?}");
    }

    let lines = find(&app, &["--since", "1h"]).stdout;
    let facts: Vec<_> = lines.lines().map(|line| line.splitn(3, "Z  ").last().unwrap()).collect();
    let expected = [
        format!(r#"{test}  added pet        1  "Rex", category 7, sold"#),
        format!(
            r#"{test}  added pet        2  "a\u{{202e}}b\"c", category -1, no status, idempotency key "k-1""#
        ),
        format!(r#"{visitor}  added pet        3  "Tom", category 7, no status"#),
    ];
    assert_eq!(facts, expected);
    let tail = |flags: &[&str]| petstore(["log", "tail", "--store", app.store()].iter().chain(flags)).stdout;
    assert_eq!(tail(&[]), lines, "a tail has the same lines");
    let json: Value = serde_json::from_str(&find(&app, &["--pet", "2", "--json"]).stdout).unwrap();
    let export = petstore(["log", "export", "--store", app.store()]).stdout;
    let record: Value = serde_json::from_str(export.lines().nth(1).unwrap()).unwrap();
    assert!(export.starts_with(&tail(&["--json"])), "as they are stored");
    assert_eq!(json["position"], 2);
    assert_eq!((&json["time"], &json["commit"]), (&record["time"], &record["id"]));
    let event = &record["events"][0];
    assert_eq!((&json["pet"], &json["type"], &json["by"]), (&event["pet"], &event["type"], &event["by"]));
}
