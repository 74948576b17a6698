//! The output of the service as programs read it: JSON on both streams, and files that are rotated.

use std::{fs, net::TcpListener, process::Command};

use harness::{App, REX, eventually, finished, program, wait_until};
use serde_json::Value;

const JSON: [&str; 2] = ["--log-format", "json"];

/// Parses lines that must all be JSON objects with the fields of a log line.
fn parse(output: &str) -> Vec<Value> {
    let line = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        for field in ["timestamp", "level", "message", "target"] {
            assert!(object[field].is_string(), "{field} in {line}");
        }
        object
    };
    output.lines().map(line).collect()
}

#[test]
fn with_json_both_streams_contain_nothing_but_json() {
    let mut app = App::start_with(&[&JSON[..], &["--admin-listen", "127.0.0.1:0"]].concat());
    assert_eq!(app.post(REX).status, 201);
    app.post("{}").error(400, "invalid_request");
    app.signal("HUP");
    app.wait_for_log("SIGHUP: reloaded the key file and the certificate");
    assert_eq!(app.terminate().code(), Some(0));
    let (stdout, stderr) = app.printed();
    let messages = parse(&stdout);
    let has = |words: &str| messages.iter().any(|line| line["message"].as_str().unwrap().contains(words));
    assert!(has("listens on http://") && messages.len() == 2, "one line for each listener: {stdout}");
    assert!(parse(&stderr).len() > 3, "{stderr}");
}

#[test]
fn with_json_a_failed_startup_is_reported_as_json() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys.toml");
    for (flags, words) in [
        (["--listen", &taken], "cannot listen on"),
        (["--listen", "0.0.0.0:0"], "--insecure-http"),
        (["--store", "sled:/proc/nowhere"], "/proc/nowhere"),
        (["--tls-cert", "/nowhere.pem"], "/nowhere.pem"),
    ] {
        let mut serve = Command::new(program());
        serve.args(["serve", "--keys"]).arg(&keys).args(JSON).args(flags);
        if !flags.contains(&"--listen") {
            serve.args(["--listen", "127.0.0.1:0"]);
        }
        if !flags.contains(&"--store") {
            serve.args(["--store", "memory:"]);
        }
        if flags.contains(&"--tls-cert") {
            serve.args(["--tls-key", "/nowhere.key"]);
        }
        let ended = finished(&mut serve).exits_with(1);
        parse(&ended.stdout);
        let lines = parse(&ended.stderr);
        let last = lines.last().unwrap_or_else(|| panic!("{flags:?}: {ended:?}"));
        assert_eq!(last["level"], "ERROR", "{last}");
        assert!(last["message"].as_str().unwrap().contains(words), "{last}");
    }
}

#[test]
fn a_part_of_the_service_logs_at_its_own_level() {
    let mut app = App::start_with(&["--log-level", "info,petstore::http=off"]);
    app.get("/v1/nowhere").error(404, "not_found");
    assert!(app.terminate().success());
    let (_, log) = app.printed();
    assert!(log.contains(" ready pets=0") && !log.contains("petstore::http"), "{log}");
}

/// Starts a service whose standard error goes to this file, as with `2>>FILE` in a shell.
fn start_with_log_in(file: &str) -> App {
    let mut app = App::stopped("memory:", &["--admin-listen", "127.0.0.1:0"]);
    let shell = ["sh", "-c", r#"exec "$@" 2>>"$0""#, file];
    app.run_by(&shell.map(str::to_owned));
    app.start_again();
    app
}

#[test]
fn a_log_file_can_be_truncated_while_the_service_appends_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    let app = start_with_log_in(file.to_str().unwrap());
    app.get("/v1/first");
    wait_until("the line is written", || fs::read_to_string(&file).unwrap().contains("/v1/first"));
    fs::write(&file, "").unwrap();
    app.get("/v1/second");
    let log = eventually("the line is written", || {
        fs::read_to_string(&file).ok().filter(|log| log.contains("/v1/second"))
    });
    assert!(!log.contains('\0') && !log.contains("/v1/first"), "it starts at the beginning: {log:?}");
}

#[test]
fn a_service_whose_log_cannot_be_written_continues() {
    let app = start_with_log_in("/dev/full");
    app.get("/v1/nowhere").error(404, "not_found");
    assert_eq!(app.post(REX).status, 201);
}
