//! A log on a server that was emptied, dropped or replaced: it is refused until an operator accepts it.

use std::{fs, os::unix::fs::PermissionsExt as _};

use harness::{App, NatsCluster, NatsSync, PostgresServer, eventually, ids, program};

const REX: &str = r#"{"name": "Rex", "categoryId": 1}"#;

fn node(store: &str) -> App {
    App::start_on(program(), store, tempfile::tempdir().unwrap(), &[])
}

/// Waits until the service has noted which log it has, and checks that nobody else can read the note.
fn noted(app: &App) {
    let note = eventually("the log is remembered", || {
        let files = fs::read_dir(app.folder()).unwrap().map(|file| file.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json"))
    });
    assert_eq!(fs::metadata(&note).unwrap().permissions().mode() & 0o777, 0o600);
    let note = fs::read_to_string(note).unwrap();
    assert!(note.contains("first_commit") && !note.contains("hunter2"), "{note}");
}

/// The service does not start, in one sentence that says what to do and holds these words.
fn is_refused(app: &mut App, words: &str) {
    let refused = app.try_start_again().expect_err("another log is refused");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in [words, "--accept-new-log"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
}

/// The service starts once it was told to accept the log, and from then on without being told.
fn is_accepted(app: &mut App, pets: usize) {
    app.run_by(&["env".into(), "PETSTORE_ACCEPT_NEW_LOG=true".into()]);
    app.start_again();
    assert_eq!(app.all_pets().len(), pets);
    app.terminate();
    app.run_by(&[]);
    app.start_again();
    assert_eq!(app.post(REX).status, 201);
    noted(app);
    app.crash();
    assert_eq!(app.all_pets().len(), pets + 1);
}

#[test]
fn a_dropped_table_is_not_an_empty_log() {
    let server = PostgresServer::start();
    let mut app = node(&server.url("postgres"));
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    app.crash();
    app.terminate();
    server.sql("postgres", "DROP TABLE petstore_commits, petstore_schema");

    is_refused(&mut app, "there is no log in the database");
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'petstore%'";
    assert_eq!(server.sql("postgres", tables), "0", "none was created");
    let other = node(&server.url("postgres"));
    is_refused(&mut app, "the log is empty");
    assert_eq!(other.post(REX).status, 201);
    is_refused(&mut app, "begins with another commit");
    is_accepted(&mut app, 1);
}

#[test]
fn a_stream_that_was_created_again_is_another_log() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Default));
    let store = cluster.url("PETS");
    let mut app = node(&store);
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    app.terminate();
    runtime.block_on(async { cluster.jetstream().await.delete_stream("PETS").await }).unwrap();
    drop(node(&store));
    is_refused(&mut app, "the log is empty");
    is_accepted(&mut app, 0);
}

#[test]
fn nodes_that_run_forget_nothing_when_their_log_is_emptied() {
    let server = PostgresServer::start();
    let nodes = [node(&server.url("postgres")), node(&server.url("postgres"))];
    for _ in 0..3 {
        assert_eq!(nodes[0].post(REX).status, 201);
    }
    eventually("both show all", || (nodes[1].all_pets().len() == 3).then_some(()));
    server.sql("postgres", "CREATE TABLE backup AS SELECT * FROM petstore_commits");
    server.sql("postgres", "TRUNCATE petstore_commits");
    for node in &nodes {
        eventually("the node says why it is not ready", || {
            let ready = node.anonymous("GET", "/readyz").send();
            let reason = "the log lacks commits that this node has applied";
            (ready.status == 503 && ready.json()["reason"] == reason).then_some(())
        });
        let report = node.get("/readyz/reads");
        assert_eq!(
            (report.status, &report.json()["position"], &report.json()["head"]),
            (503, &3.into(), &0.into())
        );
        node.post(REX).error(503, "unavailable");
        assert_eq!(ids(&node.all_pets()), [1, 2, 3], "nothing is forgotten");
    }
    assert_eq!(
        server.sql("postgres", "SELECT count(*) FROM petstore_commits"),
        "0",
        "and nothing was stored"
    );

    server.sql("postgres", "INSERT INTO petstore_commits SELECT * FROM backup");
    for node in &nodes {
        eventually("the node is ready", || {
            (node.anonymous("GET", "/readyz").send().status == 200).then_some(())
        });
    }
    assert_eq!(nodes[1].post(REX).json()["id"], 4);
}

#[test]
fn an_embedded_log_that_is_gone_is_not_created_again() {
    for engine in ["sled", "sqlite"] {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("disk").join("log");
        fs::create_dir(folder.path().join("disk")).unwrap();
        // A relative path, as `serve` would be given it.
        let here = std::env::current_dir().unwrap();
        let up = "../".repeat(here.components().count() - 1);
        let relative = format!("{engine}:{up}{}", store.strip_prefix("/").unwrap().display());
        let mut app = App::start_on(program(), &relative, folder, &[]);
        assert_eq!(app.post(REX).status, 201);
        noted(&app);
        app.terminate();
        // The disk is not mounted.
        let disk = app.folder().join("disk");
        fs::remove_dir_all(&disk).unwrap();
        is_refused(&mut app, "there is no store");
        assert!(!disk.exists(), "{engine}: nothing is created");
        fs::create_dir(&disk).unwrap();
        is_refused(&mut app, "there is no store");
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "{engine}: nothing is created");
        is_accepted(&mut app, 0);
    }
}

#[test]
fn a_damaged_record_is_rejected_and_none_is_kept_if_the_operator_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", folder.path().join("log").display());
    let mut app = App::start_on(program(), &store, folder, &[]);
    assert_eq!(app.post(REX).status, 201);
    noted(&app);
    app.terminate();
    let files = fs::read_dir(app.folder()).unwrap().map(|file| file.unwrap().path());
    let note =
        files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    let text = fs::read_to_string(&note).unwrap();
    fs::write(&note, text.replacen("\"position\":1", "\"position\":0", 1)).unwrap();
    is_refused(&mut app, "it is damaged");
    app.use_flags(&["--state", "none"]);
    app.start_again();
    assert_eq!(app.all_pets().len(), 1);
    app.terminate();
    let inside = app.folder().join("log/state");
    app.use_flags(&["--state", inside.to_str().unwrap()]);
    let refused = app.try_start_again().expect_err("the record must not be inside the store");
    assert!(refused.stderr.contains("is inside the store"), "{}", refused.stderr);
}
