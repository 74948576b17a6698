//! Backups and a continuous copy of a service under full write load, and what is left of it when it is killed.
//!
//! `PETSTORE_BACKUPS=20 PETSTORE_COPY_SECONDS=60 tests/run online_backup -- --nocapture` is the long form, which tests/run
//! without variables shortens.

use std::{
    collections::HashSet,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use harness::{App, Call, eventually, petstore, program};
use serde_json::Value;

use super::{
    continuous_copy::{Copying, export},
    log_over_http::log_key,
};
use crate::operations::deployment::free_port;

/// How many clients add pets.
const CLIENTS: usize = 16;

/// How many pets are added between two backups at least.
const PETS_BETWEEN: usize = 200;

fn from_environment(name: &str, usual: u64) -> u64 {
    env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Pets that were acknowledged.
#[derive(Default)]
struct Acknowledged {
    ids: Mutex<Vec<i64>>,
    stop: AtomicBool,
}

impl Acknowledged {
    /// Adds pets until told to stop, or until the service is gone.
    fn add_pets(&self, post: &Call) {
        while !self.stop.load(Relaxed) {
            let Some(response) = post.clone().json(r#"{"name":"Rex","categoryId":7}"#).try_send() else {
                return;
            };
            assert_eq!(response.status, 201, "{}", response.text());
            self.ids.lock().unwrap().push(response.json()["id"].as_i64().unwrap());
        }
    }

    fn so_far(&self) -> Vec<i64> {
        self.ids.lock().unwrap().clone()
    }
}

/// The ids of the pets that these records add.
fn ids_in(records: &[String]) -> Vec<i64> {
    let events = records.iter().flat_map(|record| {
        match serde_json::from_str::<Value>(record).unwrap()["events"].take() {
            Value::Array(events) => events,
            other => panic!("{other}"),
        }
    });
    events.map(|event| event["pet"]["id"].as_i64().unwrap_or_else(|| panic!("{event}"))).collect()
}

fn time_of(record: &str) -> DateTime<Utc> {
    serde_json::from_str::<Value>(record).unwrap()["time"].as_str().unwrap().parse().unwrap()
}

/// Writes an online backup to this file.
fn back_up(operators: u16, key: &str, file: &Path) {
    let exported = Command::new(program())
        .args(["log", "export", "--store", &format!("http://127.0.0.1:{operators}")])
        .env("PETSTORE_LOG_KEY", key)
        .stdout(fs::File::create(file).unwrap())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(exported.status.success(), "{exported:?}");
}

fn source() -> (App, String, u16) {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", folder.path().join("log").display());
    let app = App::start_on(program(), &store, folder, &["--ops-listen", &format!("127.0.0.1:{port}")]);
    let key = log_key(&app);
    (app, key, port)
}

#[test]
fn every_backup_under_load_is_whole_and_holds_what_was_acknowledged_before_it_began() {
    let backups = from_environment("PETSTORE_BACKUPS", 3);
    let (mut app, key, operators) = source();
    let folder = tempfile::tempdir().unwrap();
    let file = |number: u64| folder.path().join(format!("{number}.jsonl"));
    let (pets, post) = (Acknowledged::default(), app.call("POST", "/v1/pets"));
    let mut before = Vec::new();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| pets.add_pets(&post));
        }
        for number in 0..backups {
            eventually("there is more to back up", || {
                (pets.so_far().len() >= before.last().map_or(0, Vec::len) + PETS_BETWEEN).then_some(())
            });
            before.push(pets.so_far());
            let begun = Instant::now();
            back_up(operators, &key, &file(number));
            let took = begun.elapsed();
            let lines = fs::read_to_string(file(number)).unwrap().lines().count() - 1;
            println!(
                "backup {number}: {lines} commits in {took:?}, {} pets acknowledged before",
                before.last().unwrap().len()
            );
        }
        pets.stop.store(true, Relaxed);
    });
    assert!(app.terminate().success());
    let stored = export(app.store());
    for (number, before) in (0..).zip(before) {
        let restored = petstore(["log", "import", file(number).to_str().unwrap(), "--store", "memory:"]);
        assert_eq!(restored.code, Some(0), "backup {number} is whole: {}", restored.stderr);
        let text = fs::read_to_string(file(number)).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        assert!(lines.pop().unwrap().starts_with("{\"manifest\""));
        assert!(stored.starts_with(&lines), "backup {number} is a prefix");
        let mut ids = ids_in(&lines);
        ids.sort_unstable();
        assert!(before.iter().all(|id| ids.binary_search(id).is_ok()), "backup {number} lacks a pet");
    }
    println!(
        "{backups} backups, each whole and a prefix, with every pet that was acknowledged before it began"
    );
}

#[test]
fn a_copy_of_a_killed_service_lacks_no_more_than_its_lag_and_is_served_at_once() {
    let seconds = from_environment("PETSTORE_COPY_SECONDS", 3);
    let (mut app, key, operators) = source();
    let folder = tempfile::tempdir().unwrap();
    let target = format!("sled:{}", folder.path().join("copy").display());
    let copying = Copying::start(operators, &key, &target);
    copying.wait_for(0);
    let (pets, post) = (Acknowledged::default(), app.call("POST", "/v1/pets"));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| pets.add_pets(&post));
        }
        thread::sleep(Duration::from_secs(seconds));
        app.kill();
    });
    let told = copying.interrupt();
    assert_eq!(told.code, Some(0), "{told:?}");
    let reports: Vec<_> = told.stdout.lines().filter(|line| line.starts_with("behind")).collect();
    println!("{}", reports[reports.len().saturating_sub(5)..].join("\n"));
    // The first machine is gone: its copy takes over, with the same keys.
    let mut heir = App::stopped_on(program(), &target, tempfile::tempdir().unwrap(), &[]);
    fs::copy(app.keys_file(), heir.keys_file()).unwrap();
    heir.key.clone_from(&app.key);
    let begun = Instant::now();
    heir.start_again();
    let served = begun.elapsed();
    let shown = harness::ids(&heir.all_pets());
    assert_eq!(heir.post(r#"{"name":"Tom","categoryId":7}"#).status, 201, "it takes writes");
    assert!(heir.terminate().success());

    let (stored, copied) = (export(app.store()), export(&target));
    let copied = &copied[..copied.len() - 1];
    assert!(stored.starts_with(copied), "the copy is a prefix");
    assert_eq!(ids_in(copied), shown, "everything in the copy is served");
    let acknowledged = pets.so_far();
    let shown: HashSet<_> = shown.into_iter().collect();
    let lost = acknowledged.iter().filter(|id| !shown.contains(id)).count();
    let behind = match (stored.last(), copied.last()) {
        (Some(newest), Some(copy)) => (time_of(newest) - time_of(copy)).num_milliseconds(),
        _ => panic!("both hold commits"),
    };
    println!(
        "killed after {seconds} s: {} commits, {} pets acknowledged; the copy was {} commits and {behind} ms behind and lacks {lost} \
         of these pets; served after {served:?}",
        stored.len(),
        acknowledged.len(),
        stored.len() - copied.len(),
    );
    let beyond: HashSet<_> = ids_in(&stored[copied.len()..]).into_iter().collect();
    assert!(
        acknowledged.iter().all(|id| shown.contains(id) || beyond.contains(id)),
        "what is missing was committed after the end of the copy"
    );
}
