//! `/log` on the admin listener: who may read it, what it sends, how a response ends, and the log commands that use it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    thread,
    time::Duration,
};

use adapters::event_log::sled::SledLog;
use application::log::contract;
use harness::{
    App, Call, Finished, PostgresServer, Response, added, close_embedded, exported, finished, head_hash,
    history, key_file, petstore, program, wait_until,
};
use serde_json::Value;

/// No test waits longer for a line.
const LINE_TIMEOUT: Duration = Duration::from_mins(1);

/// A service with an admin listener, and a key that may read its log.
fn start(flags: &[&str]) -> (App, String) {
    let app = App::start_with(&[&["--admin-listen", "127.0.0.1:0"], flags].concat());
    let key = app.log_key();
    (app, key)
}

/// Runs a log command on what listens there, with the key in the environment.
fn on_service(address: SocketAddr, key: &str, command: &[&str]) -> Finished {
    let url = format!("http://{address}");
    let mut log = Command::new(program());
    finished(log.arg("log").args(command).args(["--store", &url]).env("PETSTORE_API_KEY", key))
}

fn log(address: SocketAddr, key: &str, method: &str, query: &str) -> Response {
    let call = Call::new(address, method, &format!("/log{query}"));
    call.key(key).send()
}

fn head(address: SocketAddr, key: &str) -> Response {
    log(address, key, "HEAD", "")
}

/// A response under way. In HTTP/1.0 it has no chunks.
struct Reading(BufReader<TcpStream>);

impl Reading {
    fn begin(address: SocketAddr, key: &str, query: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LINE_TIMEOUT)).unwrap();
        let request = format!("GET /log{query} HTTP/1.0\r\nAuthorization: Bearer {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Self(BufReader::new(stream))
    }

    /// The status, once the head was read.
    fn status(&mut self) -> u16 {
        let first = self.line().expect("a status line");
        while self.line().is_some_and(|line| line != "\r") {}
        first.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// The next whole line, or `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.strip_suffix('\n').map(str::to_owned)
    }

    /// The next line that is not a heartbeat.
    fn record(&mut self) -> Option<String> {
        loop {
            let line = self.line()?;
            if !line.is_empty() {
                return Some(line);
            }
        }
    }
}

fn whole(address: SocketAddr, key: &str, query: &str) -> Vec<String> {
    let mut reading = Reading::begin(address, key, query);
    assert_eq!(reading.status(), 200);
    std::iter::from_fn(|| reading.line()).collect()
}

fn position(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["position"].as_u64().unwrap()
}

fn add(app: &App, names: &[&str]) {
    for name in names {
        app.add(name);
    }
}

#[test]
fn the_log_is_sent_as_it_is_exported() {
    let (mut app, key) = start(&[]);
    add(&app, &["Rex", "Tom", "Ada"]);
    let admin = app.admin();
    let lines = whole(admin, &key, "?after=0");
    assert_eq!(lines, [&whole(admin, &key, "")[..3], &lines[3..]].concat(), "0 is the default");
    let rest = whole(admin, &key, "?after=2");
    assert_eq!(rest[0], lines[2]);
    let manifest = |line: &str| serde_json::from_str::<Value>(line).unwrap()["manifest"].clone();
    let (all, last) = (manifest(&lines[3]), manifest(&rest[1]));
    assert_eq!((&all["first"], &all["last"]), (&1.into(), &3.into()));
    assert_eq!((&last["first"], &last["last"]), (&3.into(), &3.into()));
    assert_eq!(all["head"], last["head"], "of the same history");
    let nothing = manifest(&whole(admin, &key, "?after=3&follow=false")[0]);
    assert_eq!((&nothing["first"], &nothing["last"]), (&4.into(), &3.into()));
    let head = head(admin, &key);
    assert_eq!((head.header("log-position"), head.header("content-length")), (Some("3"), None));

    assert!(app.terminate().success());
    let exported = petstore(["log", "export", "--store", app.store()]).stdout;
    let exported: Vec<_> = exported.lines().collect();
    assert_eq!(exported[..3], lines[..3]);
    let mut stored = manifest(exported[3]);
    stored["exported"] = all["exported"].clone();
    assert_eq!(stored, all);
}

#[test]
fn only_a_key_with_the_scope_log_and_a_valid_query_get_the_log() {
    let (app, key) = start(&[]);
    let admin = app.admin();
    Call::new(admin, "GET", "/log").send().error(401, "unauthorized");
    log(admin, "nonsense", "GET", "").error(401, "unauthorized");
    let message = log(admin, &app.key, "GET", "?after=x").error(403, "forbidden");
    assert!(message.contains("log"), "{message}");
    let metrics = app.issue_key(&["--name", "scraper", "--scope", "metrics"]);
    wait_until("the new key is active", || log(admin, &metrics, "GET", "").status != 401);
    log(admin, &metrics, "GET", "").error(403, "forbidden");
    app.get_as(&key, "/log").error(404, "not_found");
    app.get_as(&key, "/v1/pets").error(403, "forbidden");
    log(admin, &key, "POST", "").error(405, "method_not_allowed");
    for query in ["after=-1", "after=1e0", "after=01", "after=1&after=1", "follow=yes", "limit=3"] {
        let message = log(admin, &key, "GET", &format!("?{query}")).error(400, "invalid_request");
        assert!(message.contains("the query of /log may have after"), "{query}: {message}");
    }
    let message = log(admin, &key, "GET", "?after=1").error(400, "invalid_request");
    assert!(message.contains("the end of the log, which is at position 0"), "{message}");
    assert_eq!(log(admin, &key, "GET", "").status, 200);
    app.wait_for_log("backup");
}

#[test]
fn a_follower_gets_new_commits_and_heartbeats_and_ends_with_the_service() {
    let (mut app, key) = start(&["--drain-delay", "1s"]);
    add(&app, &["Rex"]);
    let mut follower = Reading::begin(app.admin(), &key, "?follow=true");
    assert_eq!(follower.status(), 200);
    assert_eq!(position(&follower.line().unwrap()), 1);
    add(&app, &["Tom"]);
    assert_eq!(position(&follower.line().unwrap()), 2, "as it becomes durable, without a heartbeat before");
    assert_eq!(follower.line().unwrap(), "", "a heartbeat");
    let readers = app.metrics();
    assert!(readers.contains("\npetstore_log_readers 1\n"), "{readers}");
    app.signal("TERM");
    // A draining service still serves, and its last commits reach the follower.
    add(&app, &["Ada"]);
    assert_eq!(position(&follower.record().unwrap()), 3);
    assert_eq!(follower.record(), None, "the end, without a manifest");
    assert!(app.wait_until_ended().success());
}

#[test]
fn a_follower_whose_key_is_revoked_gets_nothing_more() {
    let (app, key) = start(&[]);
    add(&app, &["Rex"]);
    let mut follower = Reading::begin(app.admin(), &key, "?follow=true");
    assert_eq!(follower.status(), 200);
    assert_eq!(position(&follower.line().unwrap()), 1);
    app.revoke(&key);
    assert_eq!(follower.record(), None, "the end");
    app.wait_for_log("reason=\"invalid_key\"");
}

#[test]
fn readers_above_the_limit_get_503() {
    let (app, key) = start(&[]);
    let mut readers: Vec<_> = (0..16).map(|_| Reading::begin(app.admin(), &key, "?follow=true")).collect();
    for reader in &mut readers {
        assert_eq!(reader.status(), 200);
    }
    let rejected = log(app.admin(), &key, "GET", "");
    rejected.error(503, "busy");
    assert!(rejected.header("retry-after").is_some());
    drop(readers);
    wait_until("a reader is accepted again", || log(app.admin(), &key, "GET", "").status == 200);
}

/// Commits of half a megabyte each: more than sockets hold.
const LARGE: u64 = 400;

#[test]
fn a_reader_that_does_not_read_is_closed_and_can_resume() {
    let (mut app, key) = start(&[]);
    assert!(app.terminate().success());
    let path = app.directory().join("large");
    let store = format!("sled:{}", path.display());
    let name = "🐈".repeat(200);
    let records = history(LARGE, 50, |id| added(id, &name));
    let log = SledLog::open(&path).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        contract::append_all(&log, records).await;
        close_embedded(&log, &path).await;
    });
    let stored = exported(&store);
    app.use_store(&store);
    app.start_again();

    let mut slow = Reading::begin(app.admin(), &key, "?follow=true");
    assert_eq!(slow.status(), 200);
    app.wait_for_log("reason=\"slow_or_disconnected_client\"");
    let held = app.metric("petstore_http_in_flight_bytes{listener=\"admin\"}");
    assert!(held < 8_192.0, "only this scrape holds memory: {held} bytes");
    let mut received = Vec::new();
    // It ends with a reset, or in the middle of a record.
    let _ = slow.0.read_to_end(&mut received);
    let received = String::from_utf8_lossy(&received);
    let records = received.matches('\n').count();
    assert!((1..400).contains(&records), "{records} records were under way");
    let rest = whole(app.admin(), &key, &format!("?after={records}"));
    let sent: Vec<_> = received.lines().take(records).chain(rest.iter().map(String::as_str)).collect();
    assert!(sent[..400] == stored[..400], "the same bytes in two parts");
}

#[test]
fn a_running_service_is_exported_verified_searched_and_copied() {
    let (mut app, key) = start(&[]);
    add(&app, &["Rex", "Tom"]);
    let admin = app.admin();
    let export = on_service(admin, &key, &["export"]).exits_with(0);
    let verified = on_service(admin, &key, &["verify"]).exits_with(0);
    let stat = on_service(admin, &key, &["stat", "--json"]).exits_with(0).stdout;
    let (stat, ready): (Value, _) = (serde_json::from_str(&stat).unwrap(), app.probe("/readyz").json());
    assert_eq!((&stat["engine"], &stat["durability"]), (&ready["engine"], &ready["durability"]));
    let found = on_service(admin, &key, &["find", "--pet", "2"]);
    assert!(found.code == Some(0) && found.stdout.contains("added pet        2  \"Tom\""), "{found:?}");
    let head = verified.value("head hash").to_owned();
    add(&app, &["Ada"]);
    let grown = on_service(admin, &key, &["verify", "--head", &head]);
    assert!(grown.stdout.contains("up to position 2, this is the history"), "{grown:?}");
    let other = on_service(admin, &key, &["verify", "--head", &"0".repeat(64)]);
    assert!(
        other.code == Some(1) && other.stderr.contains("no position in it has the head hash"),
        "{other:?}"
    );

    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let key_file = key_file(directory.path(), &key);
    let (from, to) = (format!("http://{admin}"), format!("sqlite:{}", file("copy")));
    let copy = ["log", "copy", "--from", &from, "--to", &to, "--api-key-file", key_file.to_str().unwrap()];
    for _ in 0..2 {
        petstore(copy).exits_with(0);
    }
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o644)).unwrap();
    let open = petstore(copy);
    assert!(
        open.code == Some(1) && open.stderr.contains("other users have access to the API key in"),
        "{open:?}"
    );
    let endless = petstore(["log", "stat", "--store", &from, "--api-key-file", "/dev/zero"]);
    assert!(
        endless.code == Some(1) && endless.stderr.contains("is not a file with an API key"),
        "{endless:?}"
    );
    fs::write(file("backup"), &export.stdout).unwrap();
    let restored = format!("sled:{}", file("restored"));
    let imported = petstore(["log", "import", &file("backup"), "--store", &restored]);
    assert_eq!(imported.value("head hash"), verified.value("head hash"));
    assert!(app.terminate().success());
    assert_eq!(head_hash(app.store()), head_hash(&to));
}

#[test]
fn a_key_is_used_before_the_service_has_loaded_it() {
    let app = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    add(&app, &["Rex"]);
    // The service cannot load this key before the file is in its place.
    let file = app.directory().join("later.toml");
    fs::copy(app.keys_file(), &file).unwrap();
    let issue = ["keys", "issue", "--name", "backup", "--scope", "log", "--keys", file.to_str().unwrap()];
    let key = petstore(issue).exits_with(0).stdout.trim_end().to_owned();
    thread::scope(|scope| {
        let export = scope.spawn(|| on_service(app.admin(), &key, &["export"]));
        app.wait_for_log("status=401");
        fs::rename(&file, app.keys_file()).unwrap();
        export.join().unwrap().exits_with(0).prints("Rex");
    });
}

#[test]
fn a_log_that_cannot_be_read_is_reported_in_one_sentence() {
    let (app, key) = start(&[]);
    let (admin, port) = (app.admin(), app.admin().port());
    for (address, key, words) in [
        (admin, "", "needs an API key with the scope \"log\": name its file with --api-key-file"),
        (admin, "nonsense", "the service rejected the API key; its service log has the reason"),
        (admin, "two words", "the API key must be a single word"),
        (
            admin,
            app.key.as_str(),
            "responded with 403: the API key lacks the log scope; issue a key that has it",
        ),
        (app.address(), &key, "no log at this address; use the address of the admin listener"),
        (([0, 0, 0, 0], port).into(), &key, "use https, or add ?tls=off"),
        (([127, 0, 0, 1], 1).into(), &key, "cannot connect"),
    ] {
        let rejected = on_service(address, key, &["export"]).exits_with(1);
        assert!(rejected.stderr.contains(words) && rejected.stderr.lines().count() == 1, "{rejected:?}");
        assert!(rejected.stdout.is_empty(), "{rejected:?}");
    }
    let waived = Command::new(program())
        .args(["log", "stat", "--store", &format!("http://0.0.0.0:{port}?tls=off")])
        .env("PETSTORE_API_KEY", &key)
        .output()
        .unwrap();
    assert!(waived.status.success(), "{waived:?}");
    let url = format!("http://{admin}");
    let keys = app.keys_file();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--keys", keys.to_str().unwrap(), "--store", &url];
    for command in [
        &serve[..],
        &["log", "import", "--store", &url],
        &["log", "salvage", "--from", &url, "--to", "memory:"],
    ] {
        petstore(command).exits_with(1).says("is a running service, not a store");
    }
}

#[test]
fn damage_under_a_running_service_is_reported_as_damage() {
    let server = PostgresServer::start();
    let app = App::on_with(&server.url("postgres"), &["--admin-listen", "127.0.0.1:0"]);
    let key = app.log_key();
    add(&app, &["Rex", "Tom", "Ada", "Max"]);
    for (damage, first_bad) in [
        ("UPDATE petstore_commits SET bytes = set_byte(bytes, 20, 0) WHERE position = 3", "3"),
        ("DELETE FROM petstore_commits WHERE position = 1", "1"),
    ] {
        server.sql("postgres", damage);
        let lines = whole(app.admin(), &key, "");
        assert_eq!(lines.last().unwrap(), &format!(r#"{{"damaged":{{"position":{first_bad}}}}}"#));
        let verified = on_service(app.admin(), &key, &["verify"]).exits_with(1);
        assert!(verified.stdout.starts_with("damaged "), "{verified:?}");
        assert_eq!(verified.value("first bad"), first_bad);
        let words = format!("the service cannot read the commit at position {first_bad}");
        for command in ["verify", "export", "tail"] {
            on_service(app.admin(), &key, &[command]).exits_with(1).says(&words);
        }
    }
}

/// Listens like a service, and responds to `GET /log` with these bytes.
fn respond_with(body: String) -> SocketAddr {
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
            // The client may have closed the connection.
            let _ = stream.get_mut().write_all(response.as_bytes());
        }
    });
    address
}

#[test]
fn a_response_that_is_not_whole_is_no_backup() {
    let (app, key) = start(&[]);
    add(&app, &["Rex", "Tom"]);
    let whole = on_service(app.admin(), &key, &["export"]).stdout;
    let lines: Vec<_> = whole.lines().map(|line| format!("{line}\n")).collect();
    let [first, second, manifest] = &lines[..] else { panic!("{lines:?}") };
    let export = |body: String| on_service(respond_with(body), &key, &["export"]);
    assert_eq!(export(whole.clone()).code, Some(0));
    assert_eq!(export(format!("\n{first}\n\n{second}{manifest}")).code, Some(0), "heartbeats do not count");
    for (body, words) in [
        (format!("{first}{second}"), "cut off after position 2"),
        (format!("{first}{}", &second[..40]), "cut off after position 1"),
        (format!("{first}{manifest}"), "a manifest that does not match"),
        (format!("{first}{second}{}", manifest.replace("\"last\":", "\"last\":1")), "does not match"),
        (format!("{second}{first}{manifest}"), "position 1"),
        (format!("{}{second}{manifest}", first.replace("Rex", "Max")), "its checksum does not match"),
    ] {
        let rejected = export(body).exits_with(1).says(words);
        assert!(!rejected.stdout.contains("manifest"), "no manifest");
    }
}
