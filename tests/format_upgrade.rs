//! From version 1 of the log format to version 2, as an operator does it: node by node, and then one flag.

use std::{env, fs, path::Path};

use adapters::event_log::memory::MemoryLog;
use application::{contract, ports::Version, transfer};
use chrono::DateTime;
use harness::{App, PostgresServer, eventually, petstore, program};

/// The program of before version 2: see `tests/old-node`.
const OLD_PROGRAM: &str = "PETSTORE_OLD_PROGRAM";

/// The versions of the records in a store that is not in use.
fn versions(store: &str) -> Vec<String> {
    let export = petstore(["log", "export", "--store", store]);
    assert_eq!(export.code, Some(0), "{}", export.stderr);
    let version = |line: &str| Some(line.strip_prefix("{\"v\":")?.split(',').next()?.to_owned());
    export.stdout.lines().filter_map(version).collect()
}

/// The head hash that `log stat` prints.
fn head_hash(store: &str) -> String {
    let stat = petstore(["log", "stat", "--store", store]).stdout;
    let head = stat.lines().find_map(|line| line.strip_prefix("head hash ")).expect("there is one");
    head.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_version_1_goes_on_in_version_2_once_the_operator_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (store, file) =
        (format!("sled:{}", folder.path().join("log").display()), folder.path().join("v1.jsonl"));
    let old = MemoryLog::default();
    contract::fill(&old, Version::START, 2).await;
    let mut export = Vec::new();
    transfer::export(&old, &mut export, DateTime::UNIX_EPOCH, |_| {}).await.unwrap();
    fs::write(&file, export).unwrap();
    let imported = petstore(["log", "import", file.to_str().unwrap(), "--store", &store]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    let of_version_1 = head_hash(&store);

    let mut app = App::start_on(program(), &store, folder, &[]);
    assert_eq!(app.post(r#"{"name":"Rex","categoryId":7}"#).status, 201);
    assert!(app.terminate().success());
    assert_eq!(versions(&store), ["1", "1", "1"], "older nodes may still read this log");

    app.use_flags(&["--format", "2"]);
    app.start_again();
    assert_eq!(app.post(r#"{"name":"Rex","categoryId":7}"#).status, 201);
    assert!(app.terminate().success());
    app.use_flags(&[]);
    app.start_again();
    assert_eq!(app.post(r#"{"name":"Rex","categoryId":7}"#).status, 201);
    assert!(app.terminate().success());
    assert_eq!(versions(&store), ["1", "1", "1", "2", "2"], "the flag is needed once");

    let verify = |head: &str| petstore(["log", "verify", "--store", &store, "--head", head]);
    for (head, position) in [(of_version_1, 2), (head_hash(&store), 5)] {
        let verified = verify(&head);
        assert_eq!(verified.code, Some(0), "{}", verified.stderr);
        assert!(verified.stdout.contains(&format!("up to position {position}")), "{}", verified.stdout);
    }
    let refused = verify(&"0".repeat(64));
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("no position in it has the head hash 000"), "{}", refused.stderr);
}

/// Both programs on one log: the old one reads what the new one writes, until version 2 is asked for.
#[test]
#[ignore = "building the program of before version 2 takes minutes: run tests/old-node"]
fn nodes_are_upgraded_one_by_one() {
    let old_program = env::var_os(OLD_PROGRAM).expect("tests/old-node names the old program");
    let server = PostgresServer::start();
    let store = server.url("postgres");
    let node =
        |program: &Path, flags: &[&str]| App::start_on(program, &store, tempfile::tempdir().unwrap(), flags);
    let create = |app: &App| assert_eq!(app.post(r#"{"name":"Rex","categoryId":7}"#).status, 201);
    let shows = |app: &App, pets: usize| {
        eventually("the node shows what the other one wrote", || {
            (app.all_pets().len() == pets).then_some(())
        });
    };
    let old = node(Path::new(&old_program), &[]);
    create(&old);
    let mut new = node(program(), &[]);
    shows(&new, 1);
    create(&new);
    shows(&old, 2);
    create(&old);
    shows(&new, 3);

    assert!(new.terminate().success());
    new.use_flags(&["--format", "2"]);
    new.start_again();
    create(&new);
    eventually("the old node stops serving", || {
        let report = old.anonymous("GET", "/readyz").send();
        (report.status == 503 && report.text().contains("newer")).then_some(())
    });
    assert_eq!(old.post(r#"{"name":"Rex","categoryId":7}"#).status, 503, "nor does it write");
    create(&new);
    shows(&new, 5);
}
