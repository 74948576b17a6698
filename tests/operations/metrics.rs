//! `--admin-listen`: the probes and metrics of the admin listener, including the clients of the deprecated operation.

use std::net::SocketAddr;

use harness::{App, Call, REX};

const OPS: [&str; 2] = ["--admin-listen", "127.0.0.1:0"];

fn metrics(address: SocketAddr) -> String {
    let response = Call::new(address, "GET", "/metrics").send();
    assert_eq!(response.status, 200);
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(response.header("content-type"), Some(format));
    response.text().to_owned()
}

#[test]
fn requests_are_counted_by_method_route_and_status() {
    let app = App::start_with(&OPS);
    app.post(REX);
    app.post("{}");
    app.get("/v1/pets");
    app.get("/v1/pets");
    app.call("HEAD", "/v1/pets").send();
    app.anonymous("GET", "/v1/pets").send();
    app.get("/v1/nowhere");
    app.call("BREW", "/v1/pets").send();
    app.get("/docs");
    app.get("/docs/page.js");
    let text = metrics(app.admin());
    for line in [
        r#"petstore_http_requests_total{method="POST",route="/v1/pets",status="201"} 1"#,
        r#"petstore_http_requests_total{method="POST",route="/v1/pets",status="400"} 1"#,
        r#"petstore_http_requests_total{method="GET",route="/v1/pets",status="200"} 2"#,
        r#"petstore_http_requests_total{method="HEAD",route="/v1/pets",status="200"} 1"#,
        r#"petstore_http_requests_total{method="GET",route="/v1/pets",status="401"} 1"#,
        r#"petstore_http_requests_total{method="other",route="/v1/pets",status="405"} 1"#,
        r#"petstore_http_requests_total{method="GET",route="other",status="404"} 1"#,
        r#"petstore_http_requests_total{method="GET",route="pages",status="200"} 2"#,
        r#"petstore_http_request_duration_seconds_count{method="GET",route="/v1/pets"} 3"#,
        r#"petstore_http_request_duration_seconds_bucket{le="+Inf",method="GET",route="/v1/pets"} 3"#,
        "petstore_pets 1",
        "petstore_log_position 1",
        "petstore_writer_queue 0",
        "petstore_ready 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn an_operator_sees_who_still_calls_what_will_be_removed() {
    let app = App::start_with(&OPS);
    let name = r#"old "shop" \ two"#;
    let key = app.issue_active_key(&["--name", name]);
    app.get("/v1/pets/1");
    app.get_as(&key, "/v1/pets/1");
    app.get_as(&key, "/v1/pets/2");
    app.anonymous("GET", "/v1/pets/1").send();
    app.get_as("nonsense", "/v1/pets/1");
    let text = metrics(app.admin());
    let calls: Vec<_> =
        text.lines().filter(|line| line.starts_with("petstore_deprecated_calls_total")).collect();
    for (key, count) in [(r#"old \"shop\" \\ two"#, "} 2"), ("test", "} 1")] {
        let begins = format!(r#"petstore_deprecated_calls_total{{key="{key}",key_id=""#);
        let is_counted = calls.iter().any(|call| call.starts_with(&begins) && call.ends_with(count));
        assert!(is_counted, "{key}: {calls:?}");
    }
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(!text.contains(&key) && !text.contains(&app.key), "no key is shown");
}

#[test]
fn the_operators_listener_serves_probes_but_no_operations() {
    let app = App::start_with(&OPS);
    let ops = app.admin();
    for path in ["/livez", "/readyz", "/readyz/reads", "/readyz/writes"] {
        assert_eq!(Call::new(ops, "GET", path).send().status, 200, "{path}");
    }
    let message = Call::new(ops, "GET", "/docs").send().error(404, "not_found");
    assert_eq!(message, "no such endpoint; see /");
    Call::new(ops, "POST", "/metrics").send().error(405, "method_not_allowed");
    Call::new(ops, "GET", "/v1/pets").send().error(404, "not_found");
    app.anonymous("GET", "/metrics").send().error(404, "not_found");
}
