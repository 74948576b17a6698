//! Stores that cannot be used: each is rejected with one sentence, and nothing is changed or created.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
};

use adapters::event_log::{ReadPurpose, object_store::ObjectLog};
use application::ports::{EventLog as _, LogSource as _, Position, ReadBound, Version};
use harness::{
    Finished, Gateway, HttpProxy, PutFault, Running, SECRET_KEY, finished, free_port, petstore, program,
    python_tool, wait_until,
};

use super::{bucket, filled, object_of};

/// Starts a service that must not start.
fn serve(url: &str, variables: Vec<(String, String)>) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys.toml");
    let keys = keys.to_str().unwrap();
    petstore(["keys", "issue", "--name", "test", "--keys", keys]).exits_with(0);
    let mut serve = Command::new(program());
    serve.args(["serve", "--listen", "127.0.0.1:0", "--store", url, "--keys", keys]);
    finished(serve.envs(variables))
}

#[track_caller]
fn is_rejected(finished: Finished, words: &str) {
    assert!(!finished.stderr.contains(SECRET_KEY) && !finished.stdout.contains(SECRET_KEY), "{finished:?}");
    let finished = finished.exits_with(1).says(words);
    assert_eq!(finished.sentences(), 1, "{finished:?}");
}

/// rclone's server ignores `If-None-Match`.
#[test]
fn a_server_that_ignores_conditions_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("bucket")).unwrap();
    let port = free_port();
    let server = python_tool("rclone")
        .args(["serve", "s3", "--addr", &format!("127.0.0.1:{port}"), "--auth-key", "key,hunter2hunter2"])
        .arg(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Running(server.unwrap());
    wait_until("rclone listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut variables = Gateway::shared().variables_via(&format!("http://127.0.0.1:{port}"));
    variables.push(("AWS_ACCESS_KEY_ID".into(), "key".into()));
    is_rejected(serve("s3://bucket/pets", variables), "requests created the same object");
    assert!(!directory.path().join("bucket/pets/log.json").exists(), "no log is created");
}

/// Looks for an object before it stores one, so two requests can store it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_checks_before_it_stores_is_rejected() {
    let gateway = Gateway::shared();
    let url = gateway.url();
    let proxy = HttpProxy::start(gateway.address()).await;
    proxy.disturb(PutFault::CheckFirst, usize::MAX);
    is_rejected(serve(&url, gateway.variables_via(&proxy.endpoint())), "requests created the same object");
    assert!(!gateway.has(&format!("{}/pets/log.json", bucket(&url))), "no log is created");
}

/// Rejects a start with each of these variables instead of those of the gateway, and without those that are empty.
#[test]
fn wrong_variables_and_credentials_are_named_and_no_secret_is_shown() {
    let gateway = Gateway::shared();
    let url = gateway.url();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "token\n").unwrap();
    let (token, plain) = (file.path().to_str().unwrap(), gateway.address().to_string());
    let endpoint = "AWS_ENDPOINT_URL must have the form https://HOST:PORT";
    let (id, secret, role) = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_METADATA_ENDPOINT");
    let neither = [(id, ""), (secret, "")];
    for (changes, words) in [
        (&[("AWS_ENDPOINT_URL", "127.0.0.1:7106")][..], endpoint),
        (&[("AWS_ENDPOINT_URL", "ftp://127.0.0.1:7106")], endpoint),
        (&[("AWS_ENDPOINT_URL", "http://127.0.0.1:99999")], endpoint),
        (&[("AWS_ENDPOINT_URL", "http://user:hunter2hunter2@127.0.0.1:7106")], endpoint),
        (&[("AWS_ENDPOINT_URL", "http://192.0.2.1:9000")], "AWS_ALLOW_HTTP=true"),
        (
            &[("AWS_ENDPOINT_URL", &format!("https://{plain}"))],
            "does not use TLS: use http:// instead of https://",
        ),
        (&[(id, "one\ntwo")], "AWS_ACCESS_KEY_ID contains a control character"),
        (&[("AWS_REGION", "one\r\ntwo")], "AWS_REGION contains a control character"),
        (&[("AWS_REGION", "eu central")], "AWS_REGION contains a character that a request cannot have"),
        (
            &[("AWS_SESSION_TOKEN", "\u{e9}")],
            "AWS_SESSION_TOKEN contains a character that a request cannot have",
        ),
        (&[(id, "unknown-key")], "check the credentials"),
        (&[(secret, "wrong-hunter2")], "check the credentials"),
        (&[(id, "")], id),
        (&[(secret, "")], secret),
        // Without keys, the role of the machine is tried; the gateway issues no credentials.
        (&[&neither[..], &[(role, "http://127.0.0.1:1")]].concat(), secret),
        (&[&neither[..], &[(role, &format!("http://{plain}"))]].concat(), secret),
        (
            &[
                &neither[..],
                &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/role")],
                &[("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)],
            ]
            .concat(),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names a file with a line break",
        ),
    ] {
        let mut variables = gateway.variables();
        variables.retain(|(name, _)| !changes.contains(&(name, "")));
        let given = changes.iter().filter(|(_, value)| !value.is_empty());
        variables.extend(given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let rejected = serve(&url, variables);
        assert!(!rejected.stderr.contains("hunter2"), "{rejected:?}");
        is_rejected(rejected, words);
    }
    assert_eq!(gateway.keys(bucket(&url)), [""; 0], "nothing is created");
    let missing = serve("s3://no-such-bucket/pets", gateway.variables());
    is_rejected(missing, "the bucket no-such-bucket does not exist");
}

/// A server with these responses to a listing and to every other request. It ends with the test.
fn server(listing: &'static str, other: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut request, mut line) = (String::new(), String::new());
            stream.read_line(&mut request).unwrap();
            while stream.read_line(&mut line).unwrap() > 2 {}
            let response = if request.contains("list-type=2") { listing } else { other };
            stream.get_mut().write_all(format!("HTTP/1.0 {response}").as_bytes()).unwrap();
        }
    });
    endpoint
}

#[test]
fn a_response_that_no_object_store_sends_is_described() {
    let missing = "404 Not Found\r\n\r\n<Error><Code>NoSuchKey</Code></Error>";
    for (listing, other, words) in [
        (
            "200 OK\r\n\r\n<html/>",
            missing,
            "responded to a listing with <html> instead of <ListBucketResult>",
        ),
        ("200 OK\r\n\r\nhello", missing, "responded to a listing with no XML"),
        (
            "",
            "404 Not Found\r\n\r\n<Error><Code>NoSuchUpload</Code></Error>",
            "(404 NoSuchUpload): check the URL",
        ),
        ("", "404 Not Found\r\n\r\n<html/>", "(404 without an error code): check the URL"),
    ] {
        let variables = Gateway::shared().variables_via(&server(listing, other));
        is_rejected(serve("s3://bucket/pets", variables), words);
    }
}

#[test]
fn a_command_that_reads_creates_nothing() {
    let gateway = Gateway::shared();
    let url = gateway.url();
    for command in ["stat", "verify", "export"] {
        let rejected = gateway.petstore(&["log", command, "--store", &url]);
        is_rejected(rejected, "log.json does not exist");
    }
    assert_eq!(gateway.keys(bucket(&url)), [""; 0]);
}

/// Damages a log of five commits, and expects the service and `log verify` to reject it with these words.
async fn damage(words: &str, damage: impl FnOnce(&Gateway, &str, &str)) {
    let gateway = Gateway::shared();
    let url = filled(5).await;
    let (bucket, third) = (bucket(&url), object_of(&url, 3));
    damage(gateway, bucket, &third);
    let before = gateway.objects(bucket);
    is_rejected(serve(&url, gateway.variables()), words);
    let verified = gateway.petstore(&["log", "verify", "--store", &url]).exits_with(1).says(words);
    assert_eq!(verified.sentences(), 1, "{verified:?}");
    assert_eq!(gateway.objects(bucket), before, "nothing is changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_marker_is_not_a_new_log() {
    damage("pets/log.json does not exist", |gateway, bucket, _| {
        gateway.request("DELETE", &format!("{bucket}/pets/log.json"), None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_marker_is_not_used() {
    damage("log.json was not written by petstore", |gateway, bucket, _| {
        gateway.request("PUT", &format!("{bucket}/pets/log.json"), Some(b"{}"));
    })
    .await;
    damage("has the format 2", |gateway, bucket, _| {
        let marker = br#"{"format":2,"log":"00000000-0000-0000-0000-000000000000"}"#;
        gateway.request("PUT", &format!("{bucket}/pets/log.json"), Some(marker));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_object_is_not_the_end_of_the_log() {
    damage(
        "the commit at position 3 is missing, but the log continues at position 4: first try to restore its object",
        |gateway, _, third| {
            gateway.request("DELETE", third, None);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_truncated_and_foreign_objects_are_damage() {
    damage("is empty", |gateway, _, third| {
        gateway.request("PUT", third, Some(b""));
    })
    .await;
    damage("is truncated", |gateway, _, third| {
        let bytes = gateway.request("GET", third, None);
        gateway.request("PUT", third, Some(&bytes[..bytes.len() / 2]));
    })
    .await;
    damage("the commit at position 3 is damaged", |gateway, _, third| {
        gateway.request("PUT", third, Some(b"hello\n"));
    })
    .await;
}

/// The only object that is too large is the newest one, so the log must open nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_large_costs_only_its_commits() {
    let gateway = Gateway::shared();
    let url = filled(5).await;
    gateway.request("PUT", &object_of(&url, 5), Some(&vec![b'x'; 17 * 1024 * 1024]));
    // A salvage that takes long checks that the log is still the same.
    let variables = gateway.variables();
    let log = ObjectLog::read_only(&url, &variables, ReadPurpose::Salvage).await.unwrap();
    assert_eq!(log.read(Position(5), ReadBound::ONE).await, Ok(vec![]));
    let verified =
        gateway.petstore(&["log", "verify", "--store", &url]).exits_with(1).says("has 17825792 bytes");
    assert_eq!((verified.value("position"), verified.value("unreadable")), ("4", "5"));
    let salvaged =
        gateway.petstore(&["log", "salvage", "--from", &url, "--to", &gateway.url()]).exits_with(3);
    assert_eq!(salvaged.value("position"), "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_lost_object_costs_few_requests() {
    const LARGE: u64 = 1_000;
    let gateway = Gateway::shared();
    let url = gateway.log();
    let log = gateway.open(&url).await;
    let records: Vec<_> = harness::history(LARGE + 5, 1, |id| harness::added(id, "Rex")).collect();
    let (large, others) = records.split_at(1_000);
    assert_eq!(log.append(Version::START, large).await, Ok(Position(LARGE)));
    let mut head = Version::at(Position(LARGE), large[999].id);
    for record in others {
        log.append(head, std::slice::from_ref(record)).await.unwrap();
        head = head.then(record.id);
    }
    log.close().await;
    gateway.request("DELETE", &object_of(&url, 1), None);

    let proxy = HttpProxy::start(gateway.address()).await;
    let target = tempfile::tempdir().unwrap();
    let to = format!("sled:{}", target.path().join("log").display());
    let salvage = ["log", "salvage", "--accept-gaps", "--from", &url, "--to", &to];
    let salvaged =
        finished(Command::new(program()).envs(gateway.variables_via(&proxy.endpoint())).args(salvage));
    let salvaged = salvaged.exits_with(3);
    assert_eq!((salvaged.value("position"), salvaged.value("unreadable")), ("5", "1 to 1000"));
    assert!(proxy.requests() < 100, "{} requests", proxy.requests());
}

/// The key has the name of an object at its end, but is no object of the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_stray_key_is_ignored() {
    let gateway = Gateway::shared();
    let url = filled(5).await;
    let stray = object_of(&url, 5)
        .replace("/commits/00000000000000000005", "/commits/00000000000000000006/00000000000000000006");
    gateway.request("PUT", &stray, Some(b"stray"));
    let verified = gateway.petstore(&["log", "verify", "--store", &url]).exits_with(0);
    assert_eq!(verified.value("position"), "5");
}
