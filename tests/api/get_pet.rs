//! `GET /v1/pets/{petId}`: found, not found, and deprecated.

use harness::{App, REX, Response};

fn assert_deprecated(response: &Response) {
    assert_eq!(response.header("deprecation"), Some("@1764892800"), "{response:?}");
    assert_eq!(response.header("sunset"), Some("Thu, 05 Dec 2030 00:00:00 GMT"));
    assert!(response.all("link").contains(&"</v1/pets>; rel=\"successor-version\""));
}

#[test]
fn a_pet_is_found_by_its_id_and_the_response_announces_the_removal() {
    let app = App::start();
    let created = app.post(r#"{"name":"Rex","categoryId":7,"status":"sold"}"#);
    let found = app.get("/v1/pets/1");
    assert_eq!((found.status, &found.body), (200, &created.body));
    assert_deprecated(&found);
}

#[test]
fn anything_but_the_id_of_a_pet_is_not_found() {
    let app = App::start();
    app.post(REX);
    let ids = "2 0 -1 01 +1 1.0 1e0 %201 x 9223372036854775807 9223372036854775808 %FF 1%2F %31%32";
    for id in ids.split(' ') {
        let response = app.get(&format!("/v1/pets/{id}"));
        assert_eq!(response.status, 404, "{id}: {}", response.text());
        response.error(404, "not_found");
        assert_deprecated(&response);
    }
    let rejected = app.anonymous("GET", "/v1/pets/1").send();
    rejected.error(401, "unauthorized");
    assert_deprecated(&rejected);
}
