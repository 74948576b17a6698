//! Copies of the log of a running service: backups under load, and `petstore log copy --follow` while either side is
//! restarted or killed.
//!
//! `TEST_BACKUPS=20 TEST_COPY_SECONDS=60 tests/run storage::log_copies -- --nocapture` is the long form.

use std::{
    collections::HashSet,
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use harness::{
    App, Call, Finished, PostgresServer, REX, Running, eventually, exported, free_port, key_file, number,
    petstore, program, signal, wait_until,
};
use serde_json::Value;
use tempfile::TempDir;

/// How many clients add pets.
const CLIENTS: usize = 16;
/// How many pets are added between two backups at least.
const PETS_BETWEEN: usize = 200;

/// A copy under way.
struct Copying {
    child: Running,
    directory: TempDir,
}

impl Copying {
    /// Follows the service whose admin listener is on this port.
    fn start(admin: u16, key: &str, to: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key_file = key_file(directory.path(), key);
        let output = |name| File::create(directory.path().join(name)).unwrap();
        let child = Command::new(program())
            .args(["log", "copy", "--follow", "--report-every", "200ms", "--to", to, "--api-key-file"])
            .arg(key_file)
            .args(["--from", &format!("http://127.0.0.1:{admin}")])
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn();
        Self { child: Running(child.unwrap()), directory }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// Waits until the copy reports this position.
    fn wait_for(&self, position: u64) {
        self.wait_until_printed(&format!("the copy is at position {position}\n"));
    }

    fn wait_until_printed(&self, words: &str) {
        wait_until(words, || self.read("stdout").contains(words));
    }

    /// Waits until the last report of the lag begins with these words.
    fn wait_until_behind(&self, words: &str) {
        let start = format!("behind      {words}");
        wait_until(&start, || {
            let printed = self.read("stdout");
            let last = printed.lines().rfind(|line| line.starts_with("behind"));
            last.is_some_and(|line| line.starts_with(&start))
        });
    }

    /// Sends what Ctrl-C sends.
    fn interrupt(mut self) -> Finished {
        signal(self.child.0.id(), "INT");
        self.ended()
    }

    fn ended(&mut self) -> Finished {
        let status = eventually("the copy ends", || self.child.0.try_wait().unwrap());
        Finished { code: status.code(), stdout: self.read("stdout"), stderr: self.read("stderr") }
    }
}

/// A service whose admin listener keeps its port across restarts, a key for its log, and that port.
fn source() -> (App, String, u16) {
    let port = free_port();
    let app = App::on_engine("sled", &["--admin-listen", &format!("127.0.0.1:{port}")]);
    let key = app.log_key();
    (app, key, port)
}

/// An empty store for a copy. The directory is deleted when dropped.
fn target() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", directory.path().join("copy").display());
    (directory, store)
}

fn add(app: &App, count: usize) {
    for number in 0..count {
        app.add(&format!("pet {number}"));
    }
}

#[test]
fn a_copy_survives_restarts_of_its_source_and_its_own_end() {
    let (mut app, key, port) = source();
    let (_directory, target) = target();
    add(&app, 3);
    let copying = Copying::start(port, &key, &target);
    copying.wait_for(3);
    add(&app, 2);
    copying.wait_for(5);
    app.crash();
    copying.wait_until_printed("\nwaiting ");
    add(&app, 2);
    copying.wait_for(7);
    assert!(copying.read("stdout").contains("\nresumed "), "{}", copying.read("stdout"));
    let ended = copying.interrupt().exits_with(0);
    for words in ["the copy ends at position 7", "behind      0 commits\n", "get the key file of the service"]
    {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    petstore(["log", "copy", "--follow", "--from", app.store(), "--to", "memory:"])
        .exits_with(1)
        .says("use the --admin-listen address");
    add(&app, 2);
    app.kill();
    let copying = Copying::start(port, &key, &target);
    copying.wait_until_printed("cannot connect");
    app.start_again();
    copying.wait_for(9);
    assert!(copying.read("stdout").contains("after position 7"), "it resumes: {}", copying.read("stdout"));
    // A planned stop: everything that was acknowledged reaches the copy.
    add(&app, 1);
    assert!(app.terminate().success());
    copying.wait_until_printed("ended after position 10: the service has stopped");
    let ended = copying.interrupt().exits_with(0);
    for words in
        ["the copy ends at position 10", "behind      unknown: http:", "run the same command to resume"]
    {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    assert_eq!(exported(&target), exported(app.store()));
}

/// The source writes nothing, so the copy has nothing to append.
#[test]
fn an_idle_copy_reports_that_its_target_does_not_respond() {
    let (app, key, port) = source();
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    add(&app, 2);
    let copying = Copying::start(port, &key, &postgres.url(&database));
    copying.wait_until_behind("0 commits; the copy is at position 2");
    postgres.kill();
    copying.wait_until_behind("unknown: the target: ");
    postgres.start_again();
    copying.wait_until_behind("0 commits; the copy is at position 2");
    postgres.sql(&database, "TRUNCATE petstore_commits");
    copying.wait_until_behind("unknown: the target ends at position 0; the copy was at position 2");
}

#[test]
fn an_idle_copy_reports_that_its_target_was_deleted() {
    let (app, key, port) = source();
    add(&app, 2);
    let (directory, sled) = target();
    let mut copying = Copying::start(port, &key, &sled);
    copying.wait_until_behind("0 commits");
    fs::remove_dir_all(directory.path().join("copy")).unwrap();
    copying.wait_until_behind("unknown: the target: the file ");
    let advice = "put the files back or choose an empty target, and start the command again; the copy ";
    copying.wait_until_printed(&format!("{advice}was at position 2"));
    assert!(!copying.read("stdout").contains("stop the service"), "{}", copying.read("stdout"));
    add(&app, 1);
    copying.ended().exits_with(1).says(&format!("{advice}ends at position 2"));
}

/// Pets that were acknowledged.
#[derive(Default)]
struct Acknowledged {
    ids: Mutex<Vec<i64>>,
    stop: AtomicBool,
}

impl Acknowledged {
    /// Adds pets until `stop` is set or the service is gone.
    fn add_pets(&self, post: &Call) {
        while !self.stop.load(Relaxed) {
            let Some(response) = post.clone().json(REX).try_send() else {
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

/// Writes an online backup to this file.
fn back_up(admin: u16, key: &str, file: &Path) {
    let exported = Command::new(program())
        .args(["log", "export", "--store", &format!("http://127.0.0.1:{admin}")])
        .env("PETSTORE_API_KEY", key)
        .stdout(fs::File::create(file).unwrap())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(exported.status.success(), "{exported:?}");
}

#[test]
fn every_backup_under_load_is_whole_and_holds_what_was_acknowledged_before_it_began() {
    let backups = number("TEST_BACKUPS").unwrap_or(3);
    let (mut app, key, admin) = source();
    let directory = tempfile::tempdir().unwrap();
    let file = |number: u64| directory.path().join(format!("{number}.jsonl"));
    let (pets, post) = (Acknowledged::default(), app.call("POST", "/v1/pets"));
    let mut before = Vec::new();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| pets.add_pets(&post));
        }
        for number in 0..backups {
            wait_until("there is more to back up", || {
                pets.so_far().len() >= before.last().map_or(0, Vec::len) + PETS_BETWEEN
            });
            before.push(pets.so_far());
            back_up(admin, &key, &file(number));
        }
        pets.stop.store(true, Relaxed);
    });
    assert!(app.terminate().success());
    let stored = exported(app.store());
    for (number, before) in (0..).zip(before) {
        petstore(["log", "import", file(number).to_str().unwrap(), "--store", "memory:"]).exits_with(0);
        let text = fs::read_to_string(file(number)).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        assert!(lines.pop().unwrap().starts_with("{\"manifest\""));
        assert!(stored.starts_with(&lines), "backup {number} is a prefix");
        let mut ids = ids_in(&lines);
        ids.sort_unstable();
        assert!(before.iter().all(|id| ids.binary_search(id).is_ok()), "backup {number} lacks a pet");
    }
}

#[test]
fn a_copy_of_a_killed_service_lacks_no_more_than_its_lag_and_is_served_at_once() {
    let seconds = number("TEST_COPY_SECONDS").unwrap_or(3);
    let (mut app, key, admin) = source();
    let (_directory, target) = target();
    let copying = Copying::start(admin, &key, &target);
    copying.wait_for(0);
    let (pets, post) = (Acknowledged::default(), app.call("POST", "/v1/pets"));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| pets.add_pets(&post));
        }
        thread::sleep(Duration::from_secs(seconds));
        app.kill();
    });
    copying.interrupt().exits_with(0);
    // The copy replaces the service, with the same keys.
    let mut successor = App::stopped(&target, &[]);
    fs::copy(app.keys_file(), successor.keys_file()).unwrap();
    successor.key.clone_from(&app.key);
    successor.start_again();
    let shown = harness::ids(&successor.all_pets());
    assert_eq!(successor.post(r#"{"name":"Tom","categoryId":7}"#).status, 201, "it takes writes");
    assert!(successor.terminate().success());

    let (stored, copied) = (exported(app.store()), exported(&target));
    let copied = &copied[..copied.len() - 1];
    assert!(stored.starts_with(copied), "the copy is a prefix");
    assert_eq!(ids_in(copied), shown, "everything in the copy is served");
    let acknowledged = pets.so_far();
    let shown: HashSet<_> = shown.into_iter().collect();
    let lost = acknowledged.iter().filter(|id| !shown.contains(id)).count();
    println!(
        "killed after {seconds} s with {} commits and {} pets acknowledged: the copy lacks {} commits and {lost} of these pets",
        stored.len(),
        acknowledged.len(),
        stored.len() - copied.len(),
    );
    let beyond: HashSet<_> = ids_in(&stored[copied.len()..]).into_iter().collect();
    assert!(acknowledged.iter().all(|id| shown.contains(id) || beyond.contains(id)), "nothing else");
}
