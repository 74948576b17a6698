//! What the log says about requests, keys and the life of the service.

use std::fs;

use harness::{App, REX, eventually, petstore, raw, wait_until};
use serde_json::Value;

const JSON: [&str; 2] = ["--log-format", "json"];

/// Every line of the log that says this.
fn lines(app: &App, message: &str) -> Vec<Value> {
    let (_, log) = app.printed();
    // The last line may be only half written.
    let (complete, _) = log.rsplit_once('\n').unwrap_or_default();
    let lines = complete
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error} in {line}")));
    lines.filter(|line| line["message"].as_str().is_some_and(|found| found.starts_with(message))).collect()
}

fn line(app: &App, message: &str, field: &str, value: &str) -> Value {
    eventually(&format!("the log says {message:?} with {field} = {value}"), || {
        lines(app, message).into_iter().find(|line| line[field] == value)
    })
}

#[test]
fn a_rejected_request_leaves_one_line_with_all_details() {
    let app = App::start_with(&JSON);
    let call = app.call("POST", "/v1/pets").header("X-Request-Id", "yesterday");
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let call = call.header("traceparent", &format!("00-{trace}-00f067aa0ba902b7-01"));
    call.header("User-Agent", "old \"shop\"\t1.0 \u{fc}").json("{}").send().error(400, "invalid_request");
    app.get("/v1/pets");
    let found = line(&app, "request rejected", "request", "yesterday");
    assert_eq!(found["route"], "/v1/pets", "{found}");
    assert_eq!((found["method"].as_str(), found["path"].as_str()), (Some("POST"), Some("/v1/pets")));
    assert_eq!(found["status"].as_u64(), Some(400), "a number: {found}");
    assert_eq!((&found["code"], &found["trace_id"]), (&"invalid_request".into(), &trace.into()));
    assert_eq!(found["error"], "name is required; categoryId is required");
    assert_eq!(found["key_name"], "test");
    assert!(found["key"].as_str().is_some_and(|id| id.len() == 12), "{found}");
    assert_eq!(found["client"], "127.0.0.1");
    assert_eq!(found["user_agent"], "old \"shop\"\t1.0 \u{fc}");
    assert!(
        found["micros"].is_u64() && found["timestamp"].is_string() && found["level"] == "INFO",
        "{found}"
    );
    assert!(found.as_object().unwrap().values().all(|value| !value.is_object()), "flat: {found}");
    assert_eq!(lines(&app, "request rejected").len(), 1, "and a request that succeeds leaves none");
    assert_eq!(lines(&app, "request completed").len(), 0);
    assert!(!app.printed().1.contains(&app.key), "no key in the log");
}

#[test]
fn a_key_in_the_wrong_place_and_signs_that_reorder_a_line_are_not_logged() {
    let app = App::start_with(&JSON);
    let agent = format!("shop {} \u{202e}evil\u{9b}31m", app.key);
    let call = app.call("GET", &format!("/v1/pets/{}", app.key)).header("X-Request-Id", "astray");
    call.header("User-Agent", &agent).send().error(404, "not_found");
    let found = line(&app, "request rejected", "request", "astray");
    assert_eq!(found["path"], "/v1/pets/petstore_***", "{found}");
    assert_eq!(found["user_agent"], "shop petstore_*** \u{fffd}evil\u{fffd}31m", "{found}");
    app.call(&app.key, "/v1/pets").header("X-Request-Id", &app.key).send().error(405, "method_not_allowed");
    let found = line(&app, "request rejected", "method", "petstore_***");
    assert_eq!(found["request"], "petstore_***", "{found}");
    assert!(!app.printed().1.contains(&app.key), "no key in the log");
}

#[test]
fn every_kind_of_rejection_is_logged_and_the_client_does_not_learn_the_reason() {
    let app = App::start_with(&["--log-format", "json", "--trusted-proxy", "127.0.0.1"]);
    let revoked = app.issue_key(&["--name", "gone"]);
    app.revoke(&revoked);
    let brief = app.issue_key(&["--name", "brief", "--expires-in", "1s"]);
    let send = |key: &str, id: &str| {
        let call = app.anonymous("GET", "/v1/pets").header("X-Request-Id", id);
        call.key(key).header("X-Forwarded-For", "198.51.100.7").send()
    };
    let unknown = send("nonsense", "unknown");
    for (key, reason) in [(revoked.as_str(), "revoked"), (&brief, "expired"), ("nonsense", "unknown")] {
        let found = eventually("the reason is logged", || {
            let response = send(key, reason);
            assert!(response.status != 401 || response.body == unknown.body, "{reason}: {response:?}");
            lines(&app, "request rejected").into_iter().find(|line| line["reason"] == reason)
        });
        assert_eq!(found["key"].is_string(), reason != "unknown", "{found}");
        let name = match reason {
            "revoked" => Some("gone"),
            "expired" => Some("brief"),
            _ => None,
        };
        assert_eq!(found["key_name"].as_str(), name, "{found}");
        assert_eq!((found["status"].as_u64(), found["client"].as_str()), (Some(401), Some("198.51.100.7")));
        assert!(!app.printed().1.contains(key) || key == "nonsense", "no key in the log");
    }
    app.anonymous("GET", "/v1/pets").header("X-Request-Id", "no-key").send();
    assert_eq!(line(&app, "request rejected", "request", "no-key")["reason"], "missing");
    app.call("DELETE", "/v1/pets").header("X-Request-Id", "no-method").send();
    assert_eq!(line(&app, "request rejected", "request", "no-method")["code"], "method_not_allowed");
    app.call("GET", &format!("/v1/{}", "x".repeat(5_000))).header("X-Request-Id", "long").send();
    let long = line(&app, "request rejected", "request", "long");
    assert!(long["path"].as_str().unwrap().len() <= 200, "{long}");
}

#[test]
fn a_request_that_is_not_valid_http_leaves_a_line() {
    let app = App::start_with(&JSON);
    let many = "X-Header: 1\r\n".repeat(100);
    let large = format!("X-Header: {}\r\n", "x".repeat(40_000));
    let requests = [
        ("NONSENSE\r\n\r\n".to_owned(), 400),
        ("GET /livez HTTP/1.1\r\nHost: here\r\nno colon\r\n\r\n".to_owned(), 400),
        (format!("GET /livez HTTP/1.1\r\nHost: here\r\n{many}\r\n"), 431),
        (format!("GET /livez HTTP/1.1\r\nHost: here\r\n{large}\r\n"), 431),
    ];
    let message = "invalid HTTP request rejected";
    for (number, (request, status)) in (1..).zip(&requests) {
        let response = String::from_utf8(raw(app.address(), request.as_bytes())).unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        wait_until("there is a line", || lines(&app, message).len() == number);
    }
    for line in lines(&app, message) {
        assert_eq!(line["client"], "127.0.0.1", "{line}");
        assert!(line["error"].as_str().is_some_and(|error| !error.is_empty()), "{line}");
    }
    assert!(lines(&app, "request rejected").is_empty(), "one line each");
}

#[test]
fn a_flood_without_a_key_hides_neither_wrong_keys_nor_failures() {
    let app = App::start_with(&[&JSON[..], &["--max-pets", "1"]].concat());
    app.add("Rex");
    for number in 0..400 {
        app.anonymous("GET", "/nothing").send();
        if number % 5 == 0 {
            let wrong = app.anonymous("GET", "/v1/pets").key(&format!("petstore_wrong{number}"));
            wrong.header("X-Request-Id", "wrong").send().error(401, "unauthorized");
            let failed = app.call("POST", "/v1/pets").header("X-Request-Id", "failed").json(REX);
            failed.send().error(503, "unavailable");
        }
    }
    wait_until("all of them are logged", || {
        let count = |message, id| lines(&app, message).iter().filter(|line| line["request"] == id).count();
        (count("request rejected", "wrong"), count("request failed", "failed")) == (80, 80)
    });
    let reports = eventually("the others are counted", || {
        Some(lines(&app, "request log rate limit reached")).filter(|lines| !lines.is_empty())
    });
    assert!(reports.iter().all(|line| line["kind"] == "without_key"), "{reports:?}");
}

/// With ten lines of this kind per second, a day of them has less than a gigabyte.
#[test]
fn a_line_is_bounded_whatever_a_client_without_a_key_sends() {
    for format in ["text", "json"] {
        let app = App::start_with(&["--log-format", format]);
        for text in ["\u{2028}", "\u{ad}", "\u{300}", "x", "'", "\u{1f408}"] {
            let long = text.repeat(300);
            let head = format!(
                "{} /{} HTTP/1.1\r\nHost: a\r\nUser-Agent: \"\\\t{long}\r\nX-Request-Id: {}\r\n\
                 traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
                 Connection: close\r\n\r\n",
                "BREW".repeat(100),
                long.replace('\'', "%"),
                "i".repeat(64),
            );
            assert!(raw(app.address(), head.as_bytes()).starts_with(b"HTTP/1.1 4"), "{text:?}");
        }
        let found = eventually("they are logged", || {
            let log = app.printed().1;
            let lines = log.lines().filter(|line| line.contains("request rejected") && line.contains("iiii"));
            Some(lines.map(str::to_owned).collect::<Vec<_>>()).filter(|lines| lines.len() == 6)
        });
        for line in found {
            assert!(line.len() < 1_150, "{}: {line}", line.len());
        }
    }
}

#[test]
fn an_access_log_has_a_line_for_every_request() {
    let app = App::start_with(&["--access-log", "--log-format", "json"]);
    app.call("GET", "/v1/pets?limit=5").header("X-Request-Id", "read").send();
    let found = line(&app, "request completed", "request", "read");
    assert_eq!((found["status"].as_u64(), found["route"].as_str()), (Some(200), Some("/v1/pets")));
    for number in 0..200 {
        app.anonymous("GET", "/v1/pets").header("X-Request-Id", &format!("r{number}")).send();
    }
    wait_until("all of them are logged", || {
        let found = lines(&app, "request rejected");
        (0..200).all(|number| found.iter().any(|line| line["request"] == format!("r{number}")))
    });
}

#[test]
fn start_configuration_changes_of_keys_and_stop_are_logged() {
    let mut app =
        App::start_with(&["--log-format", "json", "--rate-limit", "1000/s", "--admin-listen", "127.0.0.1:0"]);
    let starting = line(&app, "starting", "rate_limit", "1000/s");
    assert_eq!(starting["max_connections"].as_u64(), Some(10_000), "{starting}");
    assert!(
        starting["version"].is_string() && starting["listen"].is_string() && starting["keys"].is_string()
    );
    eventually("the service says that it is ready", || lines(&app, "ready").pop());
    let file = app.keys_file().display().to_string();
    let key = app.issue_key(&["--name", "shop"]);
    let issued = line(&app, "API key changed", "change", "issued");
    assert_eq!(issued["key_name"], "shop");
    let id = issued["key"].as_str().unwrap().to_owned();
    assert_eq!(petstore(["keys", "rotate", &id, "--keys", &file]).code, Some(0));
    assert_eq!(line(&app, "API key changed", "change", "replaced")["key"], id);
    assert_eq!(petstore(["keys", "revoke", &id, "--keys", &file]).code, Some(0));
    assert_eq!(line(&app, "API key changed", "change", "revoked")["key"], id);
    let all = fs::read(&file).unwrap();
    fs::write(&file, "version = 1\n").unwrap();
    line(&app, "API key changed", "change", "removed from the file");
    fs::write(&file, all).unwrap();
    eventually("a key that is added to an empty file is logged", || {
        let is_test = |line: &Value| line["key_name"] == "test" && line["change"] == "issued";
        lines(&app, "API key changed").into_iter().find(is_test)
    });
    assert!(!app.printed().1.contains(&key));
    assert!(app.terminate().success());
    assert_eq!((lines(&app, "stopping").len(), lines(&app, "stopped").len()), (1, 1));
}
