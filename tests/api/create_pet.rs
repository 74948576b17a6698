//! `POST /v1/pets`: what is accepted, what is returned, and what is rejected with which message.

use harness::{App, REX};
use serde_json::json;

use super::bad_requests::BODIES;

#[test]
fn a_pet_is_added_and_returned_with_its_id() {
    let app = App::start();
    let response = app.post(r#"{"name":"Rex","categoryId":7,"status":"available"}"#);
    assert_eq!(response.status, 201, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("location"), Some("/v1/pets/1"));
    assert_eq!(response.json(), json!({"id": 1, "name": "Rex", "categoryId": 7, "status": "available"}));
    assert_eq!(app.get("/v1/pets/1").json(), response.json(), "it is shown at once");
    assert_eq!(app.get("/v1/pets").json(), json!([response.json()]));
}

#[test]
fn a_pet_without_a_status_has_none() {
    let app = App::start();
    let response = app.post(REX);
    assert_eq!(response.json(), json!({"id": 1, "name": "Rex", "categoryId": 7}), "absent, not null");
    for status in ["available", "pending", "sold"] {
        assert_eq!(app.get(&format!("/v1/pets?status={status}")).json(), json!([]), "{status}");
    }
    assert_eq!(app.get("/v1/pets").json(), json!([response.json()]), "it is in the unfiltered list");
}

#[test]
fn a_name_comes_back_byte_for_byte() {
    let app = App::start();
    let longest = "🐈".repeat(200);
    for name in [
        "Rex",
        " Rex ",
        "Zoë \"the\\cat\"",
        "e\u{301}\u{200b}\u{feff}",
        "\u{2028}x",
        "</script>",
        longest.as_str(),
    ] {
        let response = app.post(&json!({"name": name, "categoryId": 1}).to_string());
        assert_eq!(response.status, 201, "{name:?}: {}", response.text());
        let path = response.header("location").unwrap().to_owned();
        assert_eq!(app.get(&path).json()["name"], name);
    }
}

#[test]
fn category_ids_keep_every_digit() {
    let app = App::start();
    for (sent, kept) in [
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("-0", "0"),
        ("1e3", "1000"),
        ("9.223372036854775807e18", "9223372036854775807"),
    ] {
        let response = app.post(&format!(r#"{{"name":"a","categoryId":{sent}}}"#));
        assert_eq!(response.status, 201, "{sent}: {}", response.text());
        assert!(response.text().contains(&format!("\"categoryId\":{kept}")), "{sent}");
    }
}

#[test]
fn invalid_bodies_are_rejected_and_change_nothing() {
    let app = App::start();
    let too_long = format!(r#"{{"name":"{}","categoryId":1}}"#, "x".repeat(201));
    let more = [(too_long.as_bytes(), "name must have at most 200 characters")];
    for (body, reason) in BODIES.iter().copied().chain(more) {
        let response = app.call("POST", "/v1/pets").json(body).send();
        assert_eq!(response.status, 400, "{:?}: {}", String::from_utf8_lossy(body), response.text());
        let message = response.error(400, "invalid_request");
        assert!(message.starts_with(reason), "{:?}: {message}", String::from_utf8_lossy(body));
    }
    assert_eq!(app.get("/v1/pets").json(), json!([]), "nothing was added");
}

#[test]
fn unknown_fields_are_ignored() {
    let app = App::start();
    let response =
        app.post(r#"{"name":"a","categoryId":1,"id":99,"photo":{"urls":[null,{"x":[1e999]}]},"photo":0,"Name":3,"":0}"#);
    assert_eq!(response.status, 201, "{}", response.text());
    assert_eq!(response.json()["id"], 1, "ids are assigned by the service");
    let deep = format!(r#"{{"name":"a","categoryId":1,"x":{}{}}}"#, "[".repeat(32_000), "]".repeat(32_000));
    assert_eq!(app.post(&deep).status, 201, "however deep they are nested");
}

#[test]
fn only_json_in_utf8_is_accepted() {
    let app = App::start();
    let pet = r#"{"name":"a","categoryId":1}"#;
    let with = |kind: &str| app.call("POST", "/v1/pets").header("Content-Type", kind).body(pet).send();
    assert_eq!(with("Application/JSON;charset=\"UTF-8\"").status, 201);
    for bad in ["text/plain", "application/json; charset=latin1", ""] {
        with(bad).error(415, "unsupported_media_type");
    }
    app.call("POST", "/v1/pets").body(pet).send().error(415, "unsupported_media_type");
}

#[test]
fn a_body_may_have_at_most_64_kib() {
    let app = App::start();
    let filled = |size: usize| {
        let empty = r#"{"name":"a","categoryId":1,"x":""}"#.len();
        format!(r#"{{"name":"a","categoryId":1,"x":"{}"}}"#, "x".repeat(size - empty))
    };
    assert_eq!(app.post(&filled(65_536)).status, 201);
    app.post(&filled(65_537)).error(413, "payload_too_large");
    app.post(&filled(2_000_000)).error(413, "payload_too_large");
}
