//! `Prefer: handling=strict` (RFC 7240): a mistyped name is an error, for clients that ask for it.

use harness::{App, REX, Response};

const APPLIED: Option<&str> = Some("handling=strict");

fn strictly(app: &App, method: &str, path: &str, body: Option<&str>) -> Response {
    let call = app.call(method, path).header("Prefer", "handling=strict");
    body.map_or(call.clone(), |body| call.json(body)).send()
}

#[test]
fn a_mistyped_field_goes_unnoticed_unless_the_client_is_strict() {
    let app = App::start();
    let mistyped = r#"{"name":"Rex","categoryId":7,"stauts":"sold"}"#;
    let response = app.post(mistyped);
    assert_eq!((response.status, response.header("preference-applied")), (201, None));
    assert!(response.json().get("status").is_none());

    let rejected = strictly(&app, "POST", "/v1/pets", Some(mistyped));
    assert_eq!(rejected.error(400, "invalid_request"), "field stauts is unknown: did you mean status?");
    assert_eq!(rejected.header("preference-applied"), APPLIED);
    let all = strictly(&app, "POST", "/v1/pets", Some(r#"{"Name":"Rex","categoryId":7}"#));
    assert_eq!(
        all.error(400, "invalid_request"),
        "name is required; field Name is unknown: did you mean name?",
        "every fault in one message"
    );
    assert_eq!(app.all_pets().len(), 1, "what was rejected was not added");

    let added =
        strictly(&app, "POST", "/v1/pets", Some(r#"{"name":"Bella","categoryId":7,"status":"sold"}"#));
    assert_eq!((added.status, added.header("preference-applied")), (201, APPLIED));
}

#[test]
fn a_mistyped_parameter_goes_unnoticed_unless_the_client_is_strict() {
    let app = App::start();
    app.post(REX);
    assert_eq!(app.get("/v1/pets?staus=sold").ids(), [1], "the list is not filtered");
    for (path, message) in [
        ("/v1/pets?staus=sold", "query parameter staus is unknown: did you mean status?"),
        ("/v1/pets?Limit=5&limit=5", "query parameter Limit is unknown: did you mean limit?"),
        ("/v1/pets?page=2", "query parameter page is unknown: it must be one of limit, status, after"),
        ("/v1/pets/1?fields=name", "query parameter fields is unknown: this operation has none"),
    ] {
        let rejected = strictly(&app, "GET", path, None);
        assert_eq!(rejected.error(400, "invalid_request"), message, "{path}");
        assert_eq!(rejected.header("preference-applied"), APPLIED, "{path}");
    }
    for path in ["/v1/pets", "/v1/pets?limit=5&status=sold&after=0", "/v1/pets/1"] {
        let response = strictly(&app, "GET", path, None);
        assert_eq!((response.status, response.header("preference-applied")), (200, APPLIED), "{path}");
    }
}

#[test]
fn one_message_names_every_fault_of_a_strict_request() {
    let app = App::start();
    let list = strictly(&app, "GET", "/v1/pets?limit=0&status=foo&after=x&y=1", None);
    let message = list.error(400, "invalid_request");
    let faults: Vec<_> =
        message.split("; ").map(|fault| fault.split_once(" must").unwrap_or((fault, "")).0).collect();
    let unknown = "query parameter y is unknown: it";
    assert_eq!(faults, ["limit", "status", "after", unknown], "{message}");
    let create = app.call("POST", "/v1/pets?dry-run=1").header("Prefer", "handling=strict");
    let create =
        create.header("Idempotency-Key", "\"a").json(r#"{"name":"","categoryId":7,"colour":"red"}"#).send();
    let message = create.error(400, "invalid_request");
    for fault in
        ["query parameter dry-run", "; Idempotency-Key must", "; name must", "; field colour is unknown"]
    {
        assert!(message.contains(fault), "{fault} in {message}");
    }
}

#[test]
fn nothing_is_said_to_be_applied_where_nothing_was() {
    let app = App::start();
    let anonymous = app.anonymous("GET", "/v1/pets?staus=sold").header("Prefer", "handling=strict").send();
    assert_eq!((anonymous.status, anonymous.header("preference-applied")), (401, None));
    let missing = strictly(&app, "GET", "/v1/nothing?x=1", None);
    assert_eq!((missing.status, missing.header("preference-applied")), (404, None));
    assert_eq!(strictly(&app, "GET", "/livez?x=1", None).header("preference-applied"), None);
}
