//! From version 1 of the log format to version 2, with the program as an operator runs it.

use std::{fs, path::Path};

use adapters::event_log::memory::MemoryLog;
use application::{contract, ports::Version, transfer};
use chrono::DateTime;
use harness::{App, petstore, program};
use tempfile::TempDir;

/// What `log stat` says about this.
fn fact(store: &str, name: &str) -> String {
    let stat = petstore(["log", "stat", "--store", store]);
    assert_eq!(stat.code, Some(0), "{}", stat.stderr);
    let line = stat.stdout.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("stat shows {name}: {}", stat.stdout)).trim().to_owned()
}

/// A service that adds one pet and ends.
fn add_one(store: &str, flags: &[&str]) {
    let mut app = App::start_on(program(), store, TempDir::new().unwrap(), flags);
    assert_eq!(app.post(r#"{"name":"Rex","categoryId":1,"status":"available"}"#).status, 201);
    assert!(app.terminate().success());
}

/// An export of three commits of version 1.
async fn old_export(file: &Path) {
    let log = MemoryLog::default();
    contract::fill(&log, Version::START, 3).await;
    let mut lines = Vec::new();
    transfer::export(&log, &mut lines, DateTime::UNIX_EPOCH, |_| {}).await.unwrap();
    fs::write(file, lines).unwrap();
}

#[tokio::test]
async fn a_log_of_version_1_goes_on_in_it_until_the_operator_asks_for_version_2() {
    let folder = TempDir::new().unwrap();
    let (file, store) = (folder.path().join("old"), format!("sled:{}", folder.path().join("log").display()));
    old_export(&file).await;
    let imported = petstore(["log", "import", file.to_str().unwrap(), "--store", &store]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    add_one(&store, &[]);
    assert_eq!(fact(&store, "format"), "1");
    let head = fact(&store, "head hash");
    add_one(&store, &["--format", "2"]);
    add_one(&store, &[]);
    assert_eq!(fact(&store, "format"), "1, and 2 from position 5 on");

    let verify = |head: &str| petstore(["log", "verify", "--store", &store, "--head", head]);
    let known = verify(&head);
    assert_eq!(known.code, Some(0), "{}", known.stderr);
    assert!(known.stdout.contains("up to position 4 it is the history"), "{}", known.stdout);
    let unknown = verify(&"0".repeat(64));
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("at no position its head hash is 0000"), "{}", unknown.stderr);
}
