//! `POST /v1/pets`: what is accepted, what is returned, and what is rejected with which message.

use harness::{App, REX};
use serde_json::json;

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

    let without_status = app.post(REX).json();
    assert_eq!(without_status, json!({"id": 2, "name": "Rex", "categoryId": 7}), "absent, not null");
    assert_eq!(app.get("/v1/pets?status=available").ids(), [1]);
    assert_eq!(app.get("/v1/pets").json()[1], without_status, "it is in the unfiltered list");
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
fn invalid_bodies_are_rejected_and_change_nothing() {
    let app = App::start();
    for (body, reason) in [
        ("", "a body is required: send a JSON object"),
        ("[]", "the body must be a JSON object"),
        ("{", "the body must be valid JSON: "),
        ("{}", "name is required; categoryId is required"),
    ] {
        let message = app.post(body).error(400, "invalid_request");
        assert!(message.starts_with(reason), "{body}: {message}");
    }
    app.call("POST", "/v1/pets").body(REX).send().error(415, "unsupported_media_type");
    assert_eq!(app.get("/v1/pets").json(), json!([]), "nothing was added");
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
}
