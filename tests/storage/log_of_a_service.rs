//! The log commands on a running service: online backup, check, search and live tail, with a key and over HTTP.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    thread,
};

use harness::{App, Finished, petstore, program};

use super::log_over_http::{key_file, start};

/// Runs a log command on what listens there, with the key in the environment.
fn on_service(address: SocketAddr, key: &str, command: &[&str]) -> Finished {
    let url = format!("http://{address}");
    let output = Command::new(program())
        .arg("log")
        .args(command)
        .args(["--store", &url])
        .env("PETSTORE_LOG_KEY", key)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Finished { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn fact(told: &Finished, name: &str) -> String {
    let line = told.stdout.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {told:?}")).to_owned()
}

fn add(app: &App, names: &[&str]) {
    for name in names {
        let pet = format!(r#"{{"name":"{name}","categoryId":7}}"#);
        assert_eq!(app.post(&pet).status, 201);
    }
}

#[test]
fn a_running_service_is_exported_verified_searched_and_copied() {
    let (mut app, key) = start(&[]);
    add(&app, &["Rex", "Tom"]);
    let operators = app.operators();
    let export = on_service(operators, &key, &["export"]);
    assert_eq!(export.code, Some(0), "{export:?}");
    let verified = on_service(operators, &key, &["verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let stat = on_service(operators, &key, &["stat"]);
    assert_eq!(stat.code, Some(0), "{stat:?}");
    assert!(stat.stdout.contains("engine of the service = sled"), "{}", stat.stdout);
    let found = on_service(operators, &key, &["find", "--pet", "2"]);
    assert!(found.code == Some(0) && found.stdout.contains("added pet 2: \"Tom\""), "{found:?}");
    let head = fact(&verified, "head hash").split_whitespace().last().unwrap().to_owned();
    add(&app, &["Ada"]);
    let grown = on_service(operators, &key, &["verify", "--head", &head]);
    assert!(grown.stdout.contains("up to position 2, this is the history"), "{grown:?}");

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let key_file = key_file(folder.path(), &key);
    let (from, to) = (format!("http://{operators}"), format!("sqlite:{}", file("copy")));
    let copy = ["log", "copy", "--from", &from, "--to", &to, "--key-file", key_file.to_str().unwrap()];
    for _ in 0..2 {
        let copied = petstore(copy);
        assert_eq!(copied.code, Some(0), "{copied:?}");
    }
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o644)).unwrap();
    let open = petstore(copy);
    assert!(open.code == Some(1) && open.stderr.contains("every user can use the API key in"), "{open:?}");
    fs::write(file("backup"), &export.stdout).unwrap();
    let restored = format!("sled:{}", file("restored"));
    let imported = petstore(["log", "import", &file("backup"), "--store", &restored]);
    assert_eq!(fact(&imported, "digest"), fact(&verified, "digest"));
    assert!(app.terminate().success());
    let stored = petstore(["log", "verify", "--store", app.store()]);
    assert_eq!(fact(&stored, "digest"), fact(&petstore(["log", "verify", "--store", &to]), "digest"));
}

#[test]
fn a_live_tail_shows_commits_as_they_are_stored() {
    let (mut app, key) = start(&[]);
    add(&app, &["Rex"]);
    let mut tail = Command::new(program())
        .args(["log", "tail", "--store", &format!("http://{}", app.operators())])
        .env("PETSTORE_LOG_KEY", &key)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("Rex"));
    for name in ["Tom", "Ada"] {
        add(&app, &[name]);
        assert!(lines.next().unwrap().unwrap().contains(name));
    }
    assert!(app.terminate().success());
    assert!(lines.next().is_none());
    let mut said = String::new();
    tail.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("ended after position 3: the service has stopped"), "{said}");
    assert_eq!(tail.wait().unwrap().code(), Some(1));
}

#[test]
fn what_keeps_a_log_from_being_read_is_said_in_one_sentence() {
    let (app, key) = start(&[]);
    let (operators, port) = (app.operators(), app.operators().port());
    for (address, key, words) in [
        (operators, "", "needs an API key with the scope log: name its file with --key-file"),
        (operators, "nonsense", "answers 401: the API key is not valid there"),
        (operators, "two words", "an API key is one word"),
        (operators, app.key.as_str(), "answers 403: the API key lacks the log scope; issue one"),
        (app.address(), &key, "no log at this address; use that of --ops-listen"),
        (([0, 0, 0, 0], port).into(), &key, "use https, or add ?tls=off"),
        (([127, 0, 0, 1], 1).into(), &key, "cannot connect"),
    ] {
        let refused = on_service(address, key, &["export"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(
            refused.stderr.contains(words) && refused.stderr.lines().count() == 1,
            "{words}: {refused:?}"
        );
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    let waived = Command::new(program())
        .args(["log", "stat", "--store", &format!("http://0.0.0.0:{port}?tls=off")])
        .env("PETSTORE_LOG_KEY", &key)
        .output()
        .unwrap();
    assert!(waived.status.success(), "{waived:?}");
    let url = format!("http://{operators}");
    let keys = app.keys_file();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--keys", keys.to_str().unwrap(), "--store", &url];
    for command in [
        &serve[..],
        &["log", "import", "--store", &url],
        &["log", "salvage", "--from", &url, "--to", "memory:"],
    ] {
        let refused = petstore(command);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("a running service, whose log can only be read"), "{refused:?}");
    }
}

/// Listens like a service, and answers `GET /log` with these bytes, whatever is asked.
fn answer_with(body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut request = String::new();
            stream.read_line(&mut request).unwrap();
            let mut rest = String::new();
            while stream.read_line(&mut rest).unwrap() > 2 {}
            let body = if request.starts_with("GET /log") { &body } else { "" };
            let response = format!("HTTP/1.0 200 OK\r\nLog-Position: 2\r\n\r\n{body}");
            // A client that has seen enough is gone.
            let _ = stream.get_mut().write_all(response.as_bytes());
        }
    });
    address
}

#[test]
fn a_response_that_is_not_whole_is_no_backup() {
    let (app, key) = start(&[]);
    add(&app, &["Rex", "Tom"]);
    let whole = on_service(app.operators(), &key, &["export"]).stdout;
    let lines: Vec<_> = whole.lines().map(|line| format!("{line}\n")).collect();
    let [first, second, manifest] = &lines[..] else { panic!("{lines:?}") };
    let export = |body: String| on_service(answer_with(body), &key, &["export"]);
    assert_eq!(export(whole.clone()).code, Some(0));
    assert_eq!(export(format!("\n{first}\n\n{second}{manifest}")).code, Some(0), "heartbeats do not count");
    for (body, words) in [
        (format!("{first}{second}"), "cut off after position 2"),
        (format!("{first}{}", &second[..40]), "cut off after position 1"),
        (format!("{first}{manifest}"), "a manifest that does not match"),
        (format!("{first}{second}{}", manifest.replace("\"bytes\":", "\"bytes\":1")), "does not match"),
        (format!("{second}{first}{manifest}"), "position 1"),
        (format!("{}{second}{manifest}", first.replace("Rex", "Max")), "its checksum does not match"),
    ] {
        let refused = export(body);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
        assert!(!refused.stdout.contains("manifest"), "what was written is no export: {}", refused.stdout);
    }
}
