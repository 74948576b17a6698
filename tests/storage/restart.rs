//! What survives a clean stop, a kill, a second process on the same store, and a foreign format.

use std::{fs, path::Path};

use application::{
    log::contract,
    ports::{Position, ReadBound, Version},
};
use harness::{App, close_embedded, in_format, open_embedded, petstore, serve};
use serde_json::{Value, json};

fn add(app: &App) -> i64 {
    let response = app.post(r#"{"name":"Rex","categoryId":7,"status":"sold"}"#);
    assert_eq!(response.status, 201, "{}", response.text());
    response.json()["id"].as_i64().unwrap()
}

#[test]
fn a_clean_stop_keeps_everything_and_exits_with_0() {
    for signal in ["TERM", "INT"] {
        let mut app = App::start();
        let before: Vec<Value> = (0..5).map(|_| app.get(&format!("/v1/pets/{}", add(&app))).json()).collect();
        app.signal(signal);
        assert_eq!(app.wait_until_ended().code(), Some(0), "{signal}");
        app.start_again();
        assert_eq!(app.get("/v1/pets").json(), json!(before), "{signal}");
        assert_eq!(add(&app), 6, "{signal}: ids continue");
    }
}

#[test]
fn an_empty_log_is_announced_and_a_log_with_pets_is_not() {
    let words = "the log is empty";
    for engine in ["sled", "sqlite"] {
        let mut app = App::on_engine(engine, &[]);
        let line = app.wait_for_log(words).lines().find(|line| line.contains(words)).unwrap().to_owned();
        assert!(line.contains("WARN") && line.contains(app.store()), "{line}");
        add(&app);
        app.crash();
        let log = app.wait_for_log("ready");
        assert!(!log.contains(words), "{engine}: {log}");
    }
    let app = App::on("memory:");
    assert!(!app.wait_for_log("ready").contains(words), "a store in memory is always empty");
}

#[test]
fn a_kill_right_after_a_response_loses_nothing() {
    let mut app = App::start();
    for round in 1..=10 {
        assert_eq!(add(&app), round, "ids continue");
        app.crash();
        let pets = app.get("/v1/pets?limit=100").json();
        assert_eq!(pets.as_array().unwrap().len(), usize::try_from(round).unwrap(), "all are there");
    }
}

#[test]
fn a_second_process_on_the_same_store_exits_with_one_sentence() {
    let app = App::start();
    add(&app);
    let second = serve(app.store(), &[]).exits_with(1).says("is in use by another process");
    assert_eq!(second.sentences(), 1, "{second:?}");
    assert_eq!(add(&app), 2, "the first process is not disturbed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_another_record_format_is_rejected_and_left_unchanged() {
    for (format, engine) in [(0, "sled"), (2, "sled"), (0, "sqlite"), (2, "sqlite")] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pets");
        let log = open_embedded(engine, &path);
        let head = contract::fill(&*log, Version::START, 1).await;
        log.append(head, &[in_format(format, &contract::record(2))]).await.unwrap();
        let records = log.read(Position::START, ReadBound::BATCH).await.unwrap();
        close_embedded(&*log, &path).await;
        let database = |path: &Path| if engine == "sqlite" { fs::read(path).ok() } else { None };
        let bytes = database(&path);

        let (store, keys) = (format!("{engine}:{}", path.display()), directory.path().join("keys.toml"));
        let flags = ["--listen", "127.0.0.1:0", "--keys", keys.to_str().unwrap()];
        petstore(["keys", "issue", "--name", "test", "--keys", flags[3]]).exits_with(0);
        let serve = [&["serve", "--store", &store], &flags[..]].concat();
        for command in [serve, vec!["log", "export", "--store", &store]] {
            let rejected = petstore(&command);
            assert_eq!((rejected.code, rejected.sentences()), (Some(1), 1), "{command:?}: {rejected:?}");
            let sentence = format!(
                "the commit at position 2 cannot be read: its record format is {format}, and this version of \
                 petstore reads only 1; use the version that wrote it"
            );
            assert!(rejected.stderr.contains(&sentence), "{command:?}: {}", rejected.stderr);
            // sled rewrites its file whenever it is opened; what it stores must not change.
            assert!(database(&path) == bytes, "{command:?} left the file unchanged");
            let log = open_embedded(engine, &path);
            let kept = log.read(Position::START, ReadBound::BATCH).await;
            close_embedded(&*log, &path).await;
            assert_eq!(kept, Ok(records.clone()), "{command:?}");
        }
    }
}
