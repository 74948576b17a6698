//! Cheap polling and the headers around it: entity tags, 304, `HEAD`, caching.

use harness::{App, Response};

const REX: &str = r#"{"name":"Rex","categoryId":7,"status":"sold"}"#;

/// The headers that tell something about the content, not about this one response.
fn of_the_content(response: &Response) -> Vec<(String, String)> {
    let others = ["date", "x-request-id", "content-type", "content-length", "connection"];
    let headers = response.headers.iter().filter(|(name, _)| !others.contains(&name.as_str()));
    headers.cloned().collect()
}

fn if_none_match(app: &App, path: &str, tag: &str) -> Response {
    app.call("GET", path).header("If-None-Match", tag).send()
}

#[test]
fn an_unchanged_page_or_pet_gets_304() {
    let app = App::start();
    for _ in 0..3 {
        app.post(REX);
    }
    for path in ["/v1/pets", "/v1/pets?limit=1", "/v1/pets?limit=1&status=sold&after=1", "/v1/pets/1"] {
        let whole = app.get(path);
        let tag = whole.header("etag").unwrap();
        assert!(tag.starts_with('"') && tag.ends_with('"'), "{path}: a strong tag, {tag}");
        assert_eq!(whole.header("cache-control"), Some("private, no-cache"), "{path}");
        for held in [tag.to_owned(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".into()] {
            let unchanged = if_none_match(&app, path, &held);
            assert_eq!((unchanged.status, unchanged.body.len()), (304, 0), "{path} {held}");
            // A 304 is decided before the page is rendered, so it does not repeat the link to the next page or the total.
            let mut expected = of_the_content(&whole);
            expected.retain(|(name, _)| !["link", "total-count"].contains(&&**name) || path == "/v1/pets/1");
            assert_eq!(of_the_content(&unchanged), expected, "{path} {held}");
        }
        for other in ["\"x\"", "", tag.trim_matches('"')] {
            assert_eq!(if_none_match(&app, path, other).body, whole.body, "{path} {other:?}");
        }
    }
}

#[test]
fn a_failing_if_match_gets_412_before_any_304() {
    let app = App::start();
    app.post(REX);
    for path in ["/v1/pets", "/v1/pets?status=sold", "/v1/pets/1", "/openapi.json"] {
        let whole = app.get(path);
        let tag = whole.header("etag").unwrap();
        let if_match = |value: &str| app.call("GET", path).header("If-Match", value);
        for held in [tag.to_owned(), format!("\"x\", {tag}"), "*".into()] {
            assert_eq!(if_match(&held).send().body, whole.body, "{path} {held}");
            assert_eq!(if_match(&held).header("If-None-Match", tag).send().status, 304, "{path} {held}");
        }
        for other in ["\"x\"".to_owned(), format!("W/{tag}"), String::new(), "x".into()] {
            if_match(&other).send().error(412, "precondition_failed");
            if_match(&other).header("If-None-Match", tag).send().error(412, "precondition_failed");
        }
    }
    app.call("GET", "/v1/pets/2").header("If-Match", "*").send().error(404, "not_found");
    let create = app.call("POST", "/v1/pets").header("If-Match", "\"x\"").header("If-None-Match", "*");
    assert_eq!(create.json(REX).send().status, 201, "a create has no preconditions");
}

#[test]
fn a_new_pet_changes_every_list_and_no_pet() {
    let mut app = App::start();
    app.post(REX);
    let paths = ["/v1/pets", "/v1/pets?status=sold", "/v1/pets/1"];
    let tags = |app: &App| paths.map(|path| app.get(path).header("etag").unwrap().to_owned());
    let old = tags(&app);
    app.post(REX);
    let new = tags(&app);
    assert!(old[..2].iter().all(|tag| !new.contains(tag)) && old[2] == new[2], "{old:?} {new:?}");
    app.crash();
    for (path, tag) in paths.iter().zip(&new) {
        assert_eq!(if_none_match(&app, path, tag).status, 304, "{path}, after a restart");
    }
}

#[test]
fn head_is_get_without_the_body() {
    let app = App::start();
    app.post(REX);
    let paths = "/v1/pets /v1/pets/1 /v1/pets/2 /v1/store/orders /v1/nowhere /readyz /openapi.json /docs";
    for path in paths.split(' ') {
        let (get, head) = (app.get(path), app.call("HEAD", path).send());
        assert_eq!((get.status, of_the_content(&get)), (head.status, of_the_content(&head)), "{path}");
        for name in ["content-type", "content-length"] {
            assert_eq!(get.header(name), head.header(name), "{path} {name}");
        }
    }
    let page = app.get("/v1/pets");
    let head = app.call("HEAD", "/v1/pets").header("If-None-Match", page.header("etag").unwrap()).send();
    assert_eq!(head.status, 304);
}

#[test]
fn errors_and_created_pets_are_not_cached() {
    let app = App::start();
    let anonymous = app.anonymous("GET", "/v1/pets").send();
    for response in [app.post(REX), app.post("{}"), app.get("/v1/nowhere"), app.get("/livez"), anonymous] {
        assert_eq!(response.header("cache-control"), Some("no-store"), "{response:?}");
        assert_eq!(
            (response.header("etag"), response.header("x-content-type-options")),
            (None, Some("nosniff"))
        );
    }
}
