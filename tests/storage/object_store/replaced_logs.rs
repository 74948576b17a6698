//! A prefix that is deleted, restored or replaced while a node lives: the node writes nothing there until its log is back.

use harness::{App, Gateway};

use super::bucket;

/// A running service with three pets, and the objects of its log.
fn service() -> (App, String, Vec<(String, Vec<u8>)>) {
    let gateway = Gateway::shared();
    let url = gateway.url();
    let mut app = App::stopped(&url, &[]);
    app.run_by(&gateway.wrapper());
    app.start_again();
    for name in ["Rex", "Tom", "Kit"] {
        app.add(name);
    }
    let objects = gateway.objects(bucket(&url));
    (app, url, objects)
}

fn delete_all(url: &str) {
    for key in Gateway::shared().keys(bucket(url)) {
        Gateway::shared().request("DELETE", &format!("{}/{key}", bucket(url)), None);
    }
}

fn restore(url: &str, objects: &[(String, Vec<u8>)]) {
    for (key, bytes) in objects {
        Gateway::shared().request("PUT", &format!("{}/{key}", bucket(url)), Some(bytes));
    }
}

#[test]
fn a_deleted_prefix_is_not_written_to_and_can_be_restored() {
    let (app, url, objects) = service();
    delete_all(&url);
    app.wait_until_not_ready();
    assert_eq!(app.post(r#"{"name":"lost","categoryId":7}"#).status, 503);
    assert_eq!(app.all_pets().len(), 3, "reads continue");
    assert_eq!(Gateway::shared().keys(bucket(&url)), [""; 0], "nothing is written to the deleted prefix");
    restore(&url, &objects);
    app.wait_until_ready();
    app.add("Ada");
    assert_eq!(app.all_pets().len(), 4);
}

/// A copy from another engine is a log with a new id.
#[test]
fn a_log_that_was_copied_into_the_emptied_prefix_is_used_after_a_restart() {
    let (mut app, url, _) = service();
    let gateway = Gateway::shared();
    let saved = format!("sled:{}", app.directory().join("saved").display());
    gateway.petstore(&["log", "copy", "--from", &url, "--to", &saved]).exits_with(0);
    delete_all(&url);
    app.wait_until_not_ready();
    gateway.petstore(&["log", "copy", "--from", &saved, "--to", &url]).exits_with(0);
    app.wait_for_log("holds another log than the one that was opened");
    let state = app.directory().to_str().unwrap();
    let accepted = gateway.petstore(&["log", "accept", "--yes", "--store", &url, "--state", state]);
    accepted.exits_with(0).prints("nothing to accept").prints("restart the node if it is not ready");
    assert!(app.terminate().success());
    app.start_again();
    app.add("Ada");
    assert_eq!(app.all_pets().len(), 4);
}

/// A gap is damage. Filling it would make two histories one.
#[test]
fn nothing_is_written_before_an_object_behind_a_gap() {
    let (app, url, objects) = service();
    let (third, bytes) =
        objects.iter().find(|(key, _)| key.ends_with("/commits/00000000000000000003")).unwrap();
    let fifth = third.replace("/commits/00000000000000000003", "/commits/00000000000000000005");
    Gateway::shared().request("PUT", &format!("{}/{fifth}", bucket(&url)), Some(bytes));
    let before = Gateway::shared().objects(bucket(&url));
    app.wait_until_not_ready();
    app.wait_for_log("the commit at position 4 is missing, but the log continues at position 5");
    assert_eq!(app.post(r#"{"name":"lost","categoryId":7}"#).status, 503);
    assert_eq!(app.all_pets().len(), 3, "reads continue");
    assert_eq!(Gateway::shared().objects(bucket(&url)), before, "nothing is changed");
}
