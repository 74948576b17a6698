//! A log on a server that was emptied, dropped or replaced: it is rejected until an operator accepts it.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{
    App, Call, Finished, NatsCluster, NatsSync, PostgresServer, REX, eventually, ids, key_file, petstore,
    program, wait_until,
};
use serde_json::Value;

/// The record of the log in this directory, if there is one.
fn record_in(directory: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let records: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect();
    assert!(records.len() < 2, "{records:?}");
    records.into_iter().next()
}

/// Waits until the service has recorded its log, and checks that only its owner can read the record.
fn noted(app: &App) {
    let note = eventually("the log is remembered", || record_in(app.directory()));
    assert_eq!(fs::metadata(&note).unwrap().permissions().mode() & 0o777, 0o600);
    let note = fs::read_to_string(note).unwrap();
    assert!(note.contains("first_commit") && !note.contains("hunter2"), "{note}");
}

/// The service does not start, in one sentence that says what to do and holds these words.
fn is_rejected(app: &mut App, words: &str) {
    let rejected = app.try_start_again().expect_err("another log is rejected").exits_with(1);
    for words in [words, &format!("petstore log accept --store {}:", app.store().split(':').next().unwrap())]
    {
        assert!(rejected.stderr.contains(words), "{words}: {}", rejected.stderr);
    }
    assert!(!rejected.stderr.contains("hunter2"), "{}", rejected.stderr);
}

/// Accepts the log for this stopped service, with more flags.
fn accept(app: &App, flags: &[&str]) -> Finished {
    let state = app.directory().to_str().unwrap();
    petstore([&["log", "accept", "--store", app.store(), "--state", state], flags].concat())
}

/// The operator accepts the log, and the service starts.
fn is_accepted(app: &mut App, pets: usize) {
    accept(app, &["--yes"]).exits_with(0).prints("given up");
    app.start_again();
    assert_eq!(app.all_pets().len(), pets);
    assert_eq!(app.post(REX).status, 201);
    noted(app);
    app.crash();
    assert_eq!(app.all_pets().len(), pets + 1);
}

/// The node serves all that it has applied, writes nothing, and names both positions.
fn rejects_its_log(node: &App, position: i64, head: i64) {
    wait_until("the node says why it is not ready", || {
        let ready = node.probe("/readyz");
        let reason = "the log lacks commits that this node has applied";
        ready.status == 503 && ready.json()["reason"] == reason
    });
    let report = node.get("/readyz/reads");
    assert_eq!(
        (report.status, &report.json()["position"], &report.json()["head"]),
        (503, &position.into(), &head.into())
    );
    node.post(REX).error(503, "unavailable");
    assert_eq!(ids(&node.all_pets()), (1..=position).collect::<Vec<_>>(), "nothing is forgotten");
}

/// A backup or a check through this node would look complete.
fn shows_no_log(node: &App, key: &str) {
    let message = Call::new(node.admin(), "GET", "/log").key(key).send().error(503, "unavailable");
    assert_eq!(message, "the log lacks commits that this node has applied");
    let key = key_file(node.directory(), key);
    for command in ["export", "verify"] {
        let store = format!("http://{}", node.admin());
        petstore(["log", command, "--store", &store, "--api-key-file", key.to_str().unwrap()])
            .exits_with(1)
            .says("responded with 503: the service is not ready; check its service log");
    }
}

/// The position in the only record in this directory.
fn recorded_position(directory: &Path) -> i64 {
    let text = fs::read_to_string(record_in(directory).unwrap()).unwrap();
    let content: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    content["position"].as_i64().unwrap()
}

#[test]
fn a_dropped_table_is_not_an_empty_log() {
    let server = PostgresServer::start();
    let mut app = App::on(&server.url("postgres"));
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    app.crash();
    app.terminate();
    server.sql("postgres", "DROP TABLE petstore_commits, petstore_schema");

    is_rejected(&mut app, "holds no log; check the URL");
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'petstore%'";
    assert_eq!(server.sql("postgres", tables), "0", "none was created");
    let other = App::on(&server.url("postgres"));
    is_rejected(&mut app, "the log is empty");
    assert_eq!(other.post(REX).status, 201);
    is_rejected(&mut app, "its first commit is different");
    is_accepted(&mut app, 1);
}

#[test]
fn a_stream_that_was_created_again_is_another_log() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Default));
    let store = cluster.url("PETS");
    let mut app = App::on(&store);
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    app.terminate();
    runtime.block_on(async { cluster.jetstream().await.delete_stream("PETS").await }).unwrap();
    is_rejected(&mut app, "stream PETS does not exist; check the URL");
    drop(App::on(&store));
    is_rejected(&mut app, "the log is empty");
    is_accepted(&mut app, 0);
}

#[test]
fn a_node_that_rejects_its_log_rejects_it_after_a_restart_too() {
    let server = PostgresServer::start();
    let mut app = App::on_with(&server.url("postgres"), &["--admin-listen", "127.0.0.1:0"]);
    let key = app.log_key();
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    for _ in 0..2 {
        assert_eq!(app.post(REX).status, 201);
    }
    // Before the record is updated again, which happens every few seconds.
    server.sql("postgres", "DELETE FROM petstore_commits WHERE position > 1");
    rejects_its_log(&app, 3, 1);
    shows_no_log(&app, &key);
    wait_until("the newest applied commit is recorded", || recorded_position(app.directory()) == 3);
    app.kill();
    is_rejected(&mut app, "the log ends at position 1, but this node has applied commits up to position 3");
}

#[test]
fn an_embedded_log_that_is_gone_is_not_created_again() {
    for engine in ["sled", "sqlite"] {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("disk").join("log");
        fs::create_dir(directory.path().join("disk")).unwrap();
        // A relative path, as `serve` would be given it.
        let here = std::env::current_dir().unwrap();
        let up = "../".repeat(here.components().count() - 1);
        let relative = format!("{engine}:{up}{}", store.strip_prefix("/").unwrap().display());
        let mut app = App::start_on(program(), &relative, directory, &[]);
        assert_eq!(app.post(REX).status, 201);
        noted(&app);
        app.terminate();
        // The disk is not mounted.
        let disk = app.directory().join("disk");
        fs::remove_dir_all(&disk).unwrap();
        is_rejected(&mut app, "no store at ");
        assert!(!disk.exists(), "{engine}: nothing is created");
        fs::create_dir(&disk).unwrap();
        is_rejected(&mut app, "no store at ");
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "{engine}: nothing is created");
        accept(&app, &["--yes"]).exits_with(0).prints("given up    1 commit, position 1;");
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "{engine}: nothing is created");
        app.start_again();
        assert_eq!(app.post(REX).json()["id"], 1);
    }
}

/// The lines of the journal in this directory.
fn journal(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("accepted.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_older_log_is_accepted_by_the_command_in_the_message_and_the_journal_says_so() {
    let mut app = App::on_engine("sqlite", &[]);
    for _ in 0..2 {
        assert_eq!(app.post(REX).status, 201);
    }
    app.terminate();
    let older = petstore(["log", "export", "--store", app.store()]).exits_with(0).stdout;
    app.start_again();
    for _ in 0..3 {
        assert_eq!(app.post(REX).status, 201);
    }
    app.terminate();
    for file in fs::read_dir(app.directory()).unwrap().map(|file| file.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("log.") || file.ends_with("log") {
            fs::remove_file(file).unwrap();
        }
    }
    let backup = app.directory().join("backup.jsonl");
    fs::write(&backup, older).unwrap();
    petstore(["log", "import", backup.to_str().unwrap(), "--store", app.store()]).exits_with(0);
    let record = record_in(app.directory()).unwrap();
    let before = fs::read(&record).unwrap();
    let rejected = app.try_start_again().expect_err("older").exits_with(1).stderr;

    // Without a terminal and without --yes, nothing is accepted.
    accept(&app, &[]).exits_with(1).says("there is no terminal to ask on; pass --yes");
    let command = &rejected[rejected.find("petstore log accept").unwrap()..];
    let on_terminal = |reply: &str| {
        let mut terminal = Command::new("script");
        let path = format!("{}:{}", program().parent().unwrap().display(), std::env::var("PATH").unwrap());
        terminal.args(["-qec", command.trim(), "/dev/null"]).env("PATH", path);
        let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        terminal.stdin.take().unwrap().write_all(reply.as_bytes()).unwrap();
        let ended = terminal.wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stdout).unwrap())
    };
    let (code, output) = on_terminal("no\n");
    assert!(code == Some(1) && output.contains("not accepted: nothing was changed"), "{output}");
    assert!(fs::read(&record).unwrap() == before && journal(app.directory()).is_empty());

    let (code, output) = on_terminal("yes\n");
    assert_eq!(code, Some(0), "{output}");
    for words in
        ["up to position 2, at 20", "up to position 5, at 20", "at least 3 commits, positions 3 to 5;"]
    {
        assert!(output.contains(words), "{words}: {output}");
    }
    let [line] = &journal(app.directory())[..] else { panic!("one line") };
    assert_eq!((&line["recorded"]["position"], &line["accepted"]["position"]), (&5.into(), &2.into()));
    let mode = fs::metadata(app.directory().join("accepted.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    app.start_again();
    assert_eq!(app.post(REX).json()["id"], 3);
    app.terminate();

    accept(&app, &["--yes"]).exits_with(0).prints("nothing to accept");
    assert_eq!(journal(app.directory()).len(), 1);
}

#[test]
fn a_log_is_accepted_only_for_a_node_that_has_a_state_file_and_a_readable_log() {
    let mut app = App::on_engine("sled", &[]);
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    let state = app.directory().to_str().unwrap().to_owned();
    accept(&app, &["--yes"]).exits_with(1).says("in use by another process");
    app.terminate();
    let other = tempfile::tempdir().unwrap();
    let elsewhere = other.path().join("state");
    for (store, state, words) in [
        (app.store(), elsewhere.to_str().unwrap(), "holds no state file of sled:"),
        (app.store(), "none", "a node without a state file accepts any log"),
        ("memory:", &*state, "memory: has no state file"),
        ("http://127.0.0.1:1", &state, "has no state file"),
    ] {
        let rejected = petstore(["log", "accept", "--yes", "--store", store, "--state", state]);
        assert_eq!(rejected.exits_with(1).says(words).sentences(), 1);
    }
    assert!(!elsewhere.exists(), "no directory is created");
    // A log behind its high-water mark is not accepted.
    fs::remove_dir_all(app.directory().join("log/sled")).unwrap();
    accept(&app, &["--yes"]).exits_with(1).says("commits up to 1 were acknowledged");
    assert!(journal(app.directory()).is_empty());
}

#[test]
fn a_damaged_record_is_rejected_and_none_is_kept_if_the_operator_says_so() {
    let mut app = App::on_engine("sled", &[]);
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    app.terminate();
    let note = record_in(app.directory()).unwrap();
    let text = fs::read_to_string(&note).unwrap();
    fs::write(&note, text.replacen("\"position\":1", "\"position\":0", 1)).unwrap();
    is_rejected(&mut app, "its checksum does not match");
    let damaged = fs::read(&note).unwrap();
    accept(&app, &["--yes"]).exits_with(0).prints("applied     unknown: the state file cannot be read");
    app.start_again();
    app.terminate();
    fs::write(&note, damaged).unwrap();
    app.use_flags(&["--state", "none"]);
    app.start_again();
    assert_eq!(app.all_pets().len(), 1);
    app.terminate();
    let inside = app.directory().join("log/state");
    app.use_flags(&["--state", inside.to_str().unwrap()]);
    let rejected = app.try_start_again().expect_err("the record must not be inside the store");
    assert!(rejected.stderr.contains("is inside the store"), "{}", rejected.stderr);
}
