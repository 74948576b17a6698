//! `petstore log copy --follow`: a second store at the heels of a running service, whatever happens to either of them.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use harness::{App, Finished, PostgresServer, eventually, petstore, program};
use tempfile::TempDir;

use super::log_over_http::{key_file, log_key};
use crate::operations::deployment::free_port;

/// A copy under way. Killed when dropped.
pub(crate) struct Copying {
    child: Child,
    folder: TempDir,
}

impl Copying {
    /// Follows the service whose operators' listener is on this port.
    pub(crate) fn start(operators: u16, key: &str, to: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key_file = key_file(folder.path(), key);
        let output = |name| File::create(folder.path().join(name)).unwrap();
        let child = Command::new(program())
            .args(["log", "copy", "--follow", "--report-every", "200ms", "--to", to, "--key-file"])
            .arg(key_file)
            .args(["--from", &format!("http://127.0.0.1:{operators}")])
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Waits until it says that the copy has come so far.
    pub(crate) fn wait_for(&self, position: u64) {
        let words = format!("the copy is at position {position}\n");
        self.wait_until_it_says(&words);
    }

    fn wait_until_it_says(&self, words: &str) {
        eventually(words, || self.read("stdout").contains(words).then_some(()));
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Presses Ctrl-C.
    pub(crate) fn interrupt(mut self) -> Finished {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
        self.ended()
    }

    fn ended(&mut self) -> Finished {
        let status = eventually("the copy ends", || self.child.try_wait().unwrap());
        Finished { code: status.code(), stdout: self.read("stdout"), stderr: self.read("stderr") }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service on a sled store of its own, whose operators' listener keeps its port.
fn source() -> (App, String, u16) {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path(), "log");
    let app = App::start_on(program(), &store, folder, &["--ops-listen", &format!("127.0.0.1:{port}")]);
    let key = log_key(&app);
    (app, key, port)
}

fn store_in(folder: &Path, name: &str) -> String {
    format!("sled:{}", folder.join(name).display())
}

fn add(app: &App, count: usize) {
    for number in 0..count {
        let pet = format!(r#"{{"name":"pet {number}","categoryId":7}}"#);
        assert_eq!(app.post(&pet).status, 201);
    }
}

pub(crate) fn export(store: &str) -> Vec<String> {
    let exported = petstore(["log", "export", "--store", store]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    exported.stdout.lines().filter(|line| !line.starts_with("{\"manifest\"")).map(str::to_owned).collect()
}

#[test]
fn a_copy_survives_restarts_of_its_source_and_its_own_end() {
    let (mut app, key, port) = source();
    let folder = tempfile::tempdir().unwrap();
    let target = store_in(folder.path(), "copy");
    add(&app, 3);
    let mut copying = Copying::start(port, &key, &target);
    copying.wait_for(3);
    add(&app, 2);
    copying.wait_for(5);
    app.crash();
    copying.wait_until_it_says("\nwaiting ");
    add(&app, 2);
    copying.wait_for(7);
    assert!(copying.read("stdout").contains("\nresumed "), "{}", copying.read("stdout"));
    copying.kill();
    add(&app, 2);
    app.kill();
    let copying = Copying::start(port, &key, &target);
    copying.wait_until_it_says("cannot connect");
    app.start_again();
    copying.wait_for(9);
    assert!(copying.read("stdout").contains("after position 7"), "it resumes: {}", copying.read("stdout"));
    // A planned stop: everything that was acknowledged reaches the copy.
    add(&app, 1);
    assert!(app.terminate().success());
    copying.wait_until_it_says("ended after position 10: the service has stopped");
    let ended = copying.interrupt();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["the copy ends at position 10", "behind      unknown: http:", "the same command resumes"] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    assert_eq!(export(&target), export(app.store()));
}

#[test]
fn an_interrupted_copy_says_how_far_it_came() {
    let (app, key, port) = source();
    let folder = tempfile::tempdir().unwrap();
    let target = store_in(folder.path(), "copy");
    add(&app, 2);
    let copying = Copying::start(port, &key, &target);
    copying.wait_for(2);
    let ended = copying.interrupt();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["the copy ends at position 2", "behind      0 commits\n", " ms behind, ", "serves the copy"]
    {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    let embedded = petstore(["log", "copy", "--follow", "--from", app.store(), "--to", "memory:"]);
    assert_eq!(embedded.code, Some(1));
    assert!(embedded.stderr.contains("name the --ops-listen address"), "{}", embedded.stderr);
}

#[test]
fn a_copy_survives_a_restart_of_its_target() {
    let (app, key, port) = source();
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let target = postgres.url(&database);
    add(&app, 2);
    let copying = Copying::start(port, &key, &target);
    copying.wait_for(2);
    postgres.kill();
    add(&app, 2);
    copying.wait_until_it_says("\nwaiting ");
    postgres.start_again();
    copying.wait_for(4);
    drop(copying);
    drop(app);
    assert_eq!(export(&target).len(), 4);
}

#[test]
fn a_copy_refuses_another_history() {
    let (mut app, key, port) = source();
    let folder = tempfile::tempdir().unwrap();
    let target = store_in(folder.path(), "copy");
    add(&app, 2);
    let mut copying = Copying::start(port, &key, &target);
    copying.wait_for(2);
    // The same address, the same keys, and another store behind them.
    app.kill();
    let first = app.store().to_owned();
    app.use_store(&store_in(app.folder(), "another"));
    app.start_again();
    let refused = copying.ended();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("different history") && refused.stderr.contains("position 2"),
        "{refused:?}"
    );
    add(&app, 3);
    let refused = Copying::start(port, &key, &target).ended();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("different history at position 2"), "{refused:?}");
    assert_eq!(export(&target), export(&first), "and leaves the copy as it is");
}
