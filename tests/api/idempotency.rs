//! `Idempotency-Key`: a client can repeat a request until it gets a response, and only one pet is added.

use std::thread;

use harness::{App, Response, petstore, with_wrong_clock};

fn send(app: &App, api_key: &str, key: &str, body: &str) -> Response {
    let call = app.anonymous("POST", "/v1/pets").key(api_key);
    call.header("Idempotency-Key", key).json(body).send()
}

const REX: &str = r#"{"name":"Rex","categoryId":7,"status":"sold"}"#;

#[test]
fn a_repeated_request_gets_the_first_response_again() {
    let mut app = App::start();
    let key = app.key.clone();
    let first = send(&app, &key, "order-1", REX);
    assert_eq!((first.status, first.header("idempotency-replayed")), (201, None));
    for crash in [false, true, false] {
        if crash {
            app.crash();
        }
        // The same pet, written differently: what counts is what it says.
        let again =
            send(&app, &key, "\"order-1\"", r#"{ "status": "sold", "categoryId": 7.0, "name": "\u0052ex" }"#);
        assert_eq!((again.status, again.header("idempotency-replayed")), (201, Some("true")));
        assert_eq!((&again.body, again.header("location")), (&first.body, first.header("location")));
    }
    send(&app, &key, "order-1", r#"{"name":"Bella","categoryId":7}"#).error(422, "idempotency_key_reused");
    app.terminate();
    let exported = petstore(["log", "export", "--store", app.store()]).stdout;
    assert_eq!(exported.matches("pet_added").count(), 1, "one event: {exported}");
}

#[test]
fn fifty_parallel_requests_with_one_key_add_one_pet() {
    let app = App::start();
    let ids: Vec<_> = thread::scope(|scope| {
        let sends: Vec<_> = (0..50).map(|_| scope.spawn(|| send(&app, &app.key, "once", REX))).collect();
        sends.into_iter().map(|send| send.join().unwrap().json()["id"].as_i64().unwrap()).collect()
    });
    assert_eq!(ids, vec![1; 50]);
    assert_eq!(app.get("/v1/pets").ids(), [1]);
}

#[test]
fn keys_of_different_callers_are_independent() {
    let app = App::start();
    let other = app.issue_key(&["--name", "other"]);
    let first = send(&app, &app.key, "a", REX);
    let second = harness::eventually("the new key is active", || {
        Some(send(&app, &other, "a", REX)).filter(|response| response.status != 401)
    });
    assert_eq!((first.json()["id"].as_i64(), second.json()["id"].as_i64()), (Some(1), Some(2)));
}

#[test]
fn an_invalid_key_is_rejected_and_a_rejected_request_does_not_use_up_its_key() {
    let app = App::start();
    for bad in ["", "\"a", "a b", &"a".repeat(256)] {
        let message = send(&app, &app.key, bad, REX).error(400, "invalid_request");
        assert!(message.contains("Idempotency-Key"), "{bad:?}: {message}");
    }
    send(&app, &app.key, "a", "{}").error(400, "invalid_request");
    assert_eq!(send(&app, &app.key, "a", REX).status, 201);
}

#[test]
fn a_key_survives_a_clock_that_is_30_days_wrong_and_a_restart() {
    let mut app = App::start();
    let key = app.key.clone();
    let first = send(&app, &key, "order-1", REX);
    assert_eq!(first.status, 201);
    for days in ["+30d", "-30d", "+0"] {
        assert!(app.terminate().success());
        app.run_by(&with_wrong_clock(&[format!("FAKETIME={days}")]));
        app.start_again();
        let again = send(&app, &key, "order-1", REX);
        assert_eq!((again.status, again.header("idempotency-replayed")), (201, Some("true")), "{days}");
        assert_eq!(again.body, first.body, "{days}");
        assert_eq!(send(&app, &key, &format!("order-{days}"), REX).status, 201, "{days}");
    }
}
