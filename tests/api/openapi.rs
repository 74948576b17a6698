//! The OpenAPI document: the committed copy is current, it describes the specified interface and every response, and a
//! public validator accepts it.

use std::{collections::BTreeSet, fs};

use harness::{App, REX, Response, petstore, python_tool, root, succeed};
use serde_json::{Value, json};

fn document() -> Value {
    serde_json::from_str(&petstore(["openapi"]).stdout).unwrap()
}

/// Every operation of the document: path, method, description.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let operations = item.as_object().unwrap().iter();
            operations.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        })
        .collect()
}

/// The object that a reference stands for, or the object itself.
fn resolve<'a>(document: &'a Value, object: &'a Value) -> &'a Value {
    let path = object["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    path.map_or(object, |path| document.pointer(path).unwrap_or_else(|| panic!("{path} exists")))
}

fn operation<'a>(document: &'a Value, id: &str) -> &'a Value {
    let found = operations(document).into_iter().find(|(_, _, operation)| operation["operationId"] == id);
    found.unwrap_or_else(|| panic!("there is {id}")).2
}

#[test]
fn the_committed_document_is_up_to_date() {
    let committed = fs::read_to_string(root().join("docs/openapi.json")).unwrap();
    assert!(
        committed == petstore(["openapi"]).stdout,
        "the interface changed: if that is meant, run `petstore openapi > docs/openapi.json` and say it in CHANGELOG.md"
    );
}

#[test]
fn a_public_validator_finds_nothing_wrong() {
    let validator = &mut python_tool("openapi-spec-validator");
    let verdict = succeed(validator.arg("--errors=all").arg(root().join("docs/openapi.json")));
    assert!(verdict.trim_end().ends_with(": OK"), "{verdict}");
}

#[test]
fn the_service_serves_the_same_document_to_every_client() {
    let app = App::start();
    let shown = app.anonymous("GET", "/openapi.json").send();
    assert_eq!((shown.status, shown.header("content-type")), (200, Some("application/json")));
    assert_eq!(shown.text(), petstore(["openapi"]).stdout);
    let again = app.anonymous("GET", "/openapi.json").header("If-None-Match", shown.header("etag").unwrap());
    assert_eq!(again.send().status, 304);
    assert_eq!(app.anonymous("HEAD", "/openapi.json").send().status, 200);
    app.anonymous("POST", "/openapi.json").send().error(405, "method_not_allowed");
}

#[test]
fn the_server_urls_and_the_contact_are_those_that_the_operator_names() {
    let urls = |document: &Value| {
        let servers = document["servers"].as_array().unwrap().iter();
        servers.map(|server| server["url"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((urls(&document()), document()["info"].get("contact")), (vec!["/v1".to_owned()], None));
    let flags = "--base-url https://pets.example.com/v1 --staging-url https://staging.example.com/v1 \
                 --contact mailto:pets@example.com";
    let flags: Vec<_> = flags.split(' ').collect();
    let expected = ["/v1", "https://pets.example.com/v1", "https://staging.example.com/v1"];
    let printed = petstore(["openapi"].iter().chain(&flags)).stdout;
    let app = App::start_with(&flags);
    for document in
        [serde_json::from_str(&printed).unwrap(), app.anonymous("GET", "/openapi.json").send().json()]
    {
        assert_eq!(urls(&document), expected);
        assert_eq!(document["info"]["contact"], json!({ "email": "pets@example.com" }));
    }
    assert_eq!(petstore(["openapi", "--base-url", "https://pets.example.com"]).code, Some(2));
}

#[test]
fn the_document_describes_the_specified_interface() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["license"]["identifier"], "MIT OR Apache-2.0");
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let named: Vec<_> = operations(&document)
        .iter()
        .map(|(path, method, of)| (*path, *method, of["operationId"].clone()))
        .collect();
    assert_eq!(
        named,
        [
            ("/pets", "get", json!("listPets")),
            ("/pets", "post", json!("createPet")),
            ("/pets/{petId}", "get", json!("getPet")),
            ("/store/orders", "get", json!("listOrders")),
        ]
    );
    for (_, _, operation) in operations(&document) {
        let id = &operation["operationId"];
        assert_eq!(
            (&operation["tags"], &operation["security"]),
            (&json!(["animals"]), &json!([{ "bearer": [] }]))
        );
        let deprecated = id == "getPet";
        assert_eq!(operation["deprecated"] == true, deprecated, "{id}");
        assert_eq!(operation["x-deprecated-sunset"] == "2030-12-05", deprecated, "{id}");
        let hidden = id == "listOrders";
        assert_eq!(operation["x-hideTryItPanel"] == true, hidden, "{id}");
        assert_eq!(operation["x-stability"] == "experimental", hidden, "{id}");
    }
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["NewPet"]["required"], json!(["name", "categoryId"]));
    assert_eq!(schemas["Pet"]["allOf"][0]["$ref"], "#/components/schemas/NewPet");
    assert_eq!(schemas["Error"]["required"], json!(["code", "message", "status"]));
}

/// The headers that the description of the document promises on every response, on every response to a valid key, and
/// on every response of a deprecated operation. Only 200 and 201 list them again.
const ON_EVERY_RESPONSE: [&str; 2] = ["Cache-Control", "X-Request-Id"];
const WITH_A_VALID_KEY: [&str; 3] = ["Log-Position", "RateLimit", "RateLimit-Policy"];
const IF_DEPRECATED: [&str; 3] = ["Deprecation", "Link", "Sunset"];

#[test]
fn headers_that_many_responses_have_are_described_once() {
    let document = document();
    let description = document["info"]["description"].as_str().unwrap();
    for name in [&ON_EVERY_RESPONSE[..], &WITH_A_VALID_KEY, &IF_DEPRECATED].concat() {
        assert!(description.contains(&format!("`{name}`")), "{name}");
        assert!(document["components"]["headers"][name].is_object(), "{name}");
    }
}

/// Asserts that the document knows this response of this operation, with its headers, its code and its body.
fn assert_described(document: &Value, id: &str, response: &Response) {
    let operation = operation(document, id);
    let described = resolve(document, &operation["responses"][response.status.to_string()]);
    assert!(described.is_object(), "{id} can respond with {}: {response:?}", response.status);
    let listed = described["headers"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let mut headers: BTreeSet<_> = listed.collect();
    if response.status >= 300 {
        headers.extend(ON_EVERY_RESPONSE);
        headers.extend(WITH_A_VALID_KEY.into_iter().filter(|_| response.status != 401));
    }
    headers.extend(IF_DEPRECATED.into_iter().filter(|_| operation["deprecated"] == true));
    let headers: BTreeSet<_> = headers.into_iter().map(str::to_lowercase).collect();
    let of_the_connection =
        ["content-type", "content-length", "date", "connection", "x-content-type-options"];
    for (name, _) in response.headers.iter().filter(|(name, _)| !of_the_connection.contains(&name.as_str())) {
        assert!(headers.contains(name), "{id} {} has {name}", response.status);
    }
    let optional = ["link", "idempotency-replayed", "ratelimit", "ratelimit-policy"];
    for name in headers.iter().filter(|name| !optional.contains(&name.as_str())) {
        assert!(!response.all(name).is_empty(), "{id} {} has {name}: {response:?}", response.status);
    }
    assert_eq!(described.get("content").is_some(), !response.body.is_empty(), "{id} {}", response.status);
    if response.status >= 400 {
        let content = &described["content"]["application/json"];
        let named = content["examples"].as_object().into_iter().flatten();
        let examples = content.get("example").into_iter().chain(named.map(|(_, example)| &example["value"]));
        let codes: BTreeSet<_> = examples.map(|example| example["code"].to_string()).collect();
        assert!(codes.contains(&response.json()["code"].to_string()), "{id}: none of {codes:?}");
    }
}

#[test]
fn every_operation_describes_its_limits() {
    let app = App::start_with(&["--rate-limit", "1/h", "--failed-auth-limit", "1/h"]);
    let document = document();
    app.get("/v1/pets");
    app.get_as("wrong", "/v1/pets");
    for (path, method, described) in operations(&document) {
        let call = app.call(&method.to_uppercase(), &format!("/v1{}", path.replace("{petId}", "1")));
        let id = described["operationId"].as_str().unwrap();
        let limited = call.send();
        assert_eq!(limited.status, 429, "{id}");
        assert_described(&document, id, &limited);
        let described = resolve(&document, &described["responses"]["429"]);
        let examples = &described["content"]["application/json"]["examples"];
        assert!(examples["rate_limited"].is_object() && examples["wrong_keys"].is_object(), "{id}");
    }
    app.get_as("wrong", "/v1/pets").error(429, "rate_limited");
}

#[test]
fn every_kind_of_response_is_described() {
    let app = App::start();
    let document = document();
    let pet = REX;
    let post =
        |key: &str, body: &str| app.call("POST", "/v1/pets").header("Idempotency-Key", key).json(body).send();
    let reader = app.issue_key(&["--name", "reader", "--scope", "read"]);
    let writer = app.issue_key(&["--name", "writer", "--scope", "write"]);
    harness::wait_until("the new keys are active", || app.get_as(&reader, "/v1/pets").status == 200);
    let bearer = |key: &str| format!("Bearer {key}");
    for response in [
        post("a", pet),
        post("a", pet),
        post("a", r#"{"name":"Bella","categoryId":7}"#),
        post("b", "{}"),
        app.call("POST", "/v1/pets").body(pet).send(),
        app.post(&" ".repeat(70_000)),
        app.anonymous("POST", "/v1/pets").json(pet).send(),
        app.anonymous("POST", "/v1/pets").header("Authorization", &bearer(&reader)).json(pet).send(),
        app.call("POST", "/v1/pets").header("Log-Position", "9").json(pet).send(),
    ] {
        assert_described(&document, "createPet", &response);
    }
    for (id, path) in [("listPets", "/v1/pets"), ("getPet", "/v1/pets/1"), ("listOrders", "/v1/store/orders")]
    {
        for response in [
            app.get(path),
            app.call("GET", path).header("If-None-Match", "*").send(),
            app.call("GET", path).header("If-Match", "\"x\"").send(),
            app.call("GET", path).header("Log-Position", "x").send(),
            app.call("GET", path).header("Log-Position", "9").send(),
            app.anonymous("GET", path).send(),
            app.get_as("nonsense", path),
            app.get_as(&writer, path),
        ] {
            assert_described(&document, id, &response);
        }
    }
    assert_described(&document, "getPet", &app.get("/v1/pets/2"));
    assert_described(&document, "listPets", &app.get("/v1/pets?limit=0"));
}
