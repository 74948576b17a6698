//! A key that replaces another one: it has the same owner, so nothing that the owner did is forgotten or done
//! twice.

use harness::{App, REX, Response, petstore};

fn keys(app: &App, arguments: &[&str]) -> harness::Finished {
    let file = app.keys_file();
    petstore([&["keys"], arguments, &["--keys", file.to_str().unwrap()]].concat())
}

/// Replaces the key and waits until the service accepts the new one.
fn rotate(app: &App, key: &str, arguments: &[&str]) -> String {
    let rotated = keys(app, &[&["rotate", key], arguments].concat()).exits_with(0);
    let new = rotated.stdout.lines().last().expect("the key is the last line").to_owned();
    app.wait_for_status(&new, 200);
    new
}

fn create(app: &App, key: &str, request_key: &str) -> Response {
    app.anonymous("POST", "/v1/pets").key(key).header("Idempotency-Key", request_key).json(REX).send()
}

#[test]
fn a_request_repeated_with_the_new_key_adds_no_second_pet() {
    let mut app = App::start();
    let old = app.key.clone();
    let created = create(&app, &old, "order-1");
    assert_eq!(created.status, 201);

    let new = rotate(&app, &old, &[]);
    for key in [&new, &old] {
        let repeated = create(&app, key, "order-1");
        assert_eq!((repeated.status, &repeated.body), (201, &created.body));
        assert_eq!(repeated.header("idempotency-replayed"), Some("true"));
    }
    app.key = new;
    app.crash();
    let repeated = create(&app, &app.key, "order-1");
    assert_eq!(repeated.header("idempotency-replayed"), Some("true"), "a restart forgets nothing");
    assert_eq!(app.get("/v1/pets").json().as_array().unwrap().len(), 1);
}

#[test]
fn the_log_names_the_owner_and_not_the_key() {
    let mut app = App::start();
    let old = app.key.clone();
    assert_eq!(create(&app, &old, "order-1").status, 201);
    let new = rotate(&app, &old, &[]);
    assert_eq!(create(&app, &new, "order-2").status, 201);
    let other = app.issue_active_key(&["--name", "other"]);
    assert_eq!(create(&app, &other, "order-1").status, 201);
    app.terminate();

    let export = petstore(["log", "export", "--store", app.store()]).stdout;
    let by: Vec<String> = export
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .flat_map(|commit| commit["events"].as_array().cloned().unwrap_or_default())
        .map(|event| event["by"].as_str().unwrap().to_owned())
        .collect();
    let [first, second, third] = &by[..] else { panic!("three events: {export}") };
    assert!(first == second && first != third, "{by:?}");
}
