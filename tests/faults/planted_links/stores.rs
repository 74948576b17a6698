//! Links in the place of every file and directory of a store.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
};

use harness::{App, petstore};
use tempfile::TempDir;

use super::{Plant, Service, Trap};

const SLED: &str = "lock mark mark.new ballast not-synced sled/db sled/conf sled/snap.0000000000000001 \
                    sled/snap.0000000000000002.generating";
const SQLITE: &str = ".lock .mark .mark.new .ballast .not-synced -wal -shm -journal";
/// Directories that are created in a store.
const DIRECTORIES: [&str; 3] = ["log/sled", "log/sled/blobs", "log/dry-run"];

/// Runs everything that opens a store, and checks after each that no link was followed.
fn open_in_every_way(trap: &Trap, engine: &str, output: &str) {
    let store = store_in(trap.service.path(), engine);
    let elsewhere = TempDir::new().unwrap();
    let target = format!("sled:{}", elsewhere.path().join("target").display());
    for command in [
        &["log", "stat", "--store", &store][..],
        &["log", "verify", "--store", &store],
        &["log", "export", "--store", &store],
        &["log", "salvage", "--from", &store, "--to", &target],
        &["log", "copy", "--from", &target, "--to", &store],
    ] {
        petstore(command);
        trap.check(&format!("{output}, {command:?}"));
    }
    let keys = elsewhere.path().join("keys.toml");
    Service::start(&store, keys.to_str().unwrap(), elsewhere.path().join("output")).use_key(None);
    trap.check(&format!("{output}, serve"));
}

/// Puts a pet into a store, and kills the service.
pub(super) fn fill(store: &str) {
    let mut app = App::on(store);
    assert_eq!(app.post(r#"{"name":"Rex","categoryId":1,"status":"available"}"#).status, 201);
    app.kill();
}

fn store_in(directory: &Path, engine: &str) -> String {
    format!("{engine}:{}", directory.join("log").display())
}

fn copy_all(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap().success());
}

/// The files have these names after `prefix`.
fn links_are_not_followed(engine: &str, prefix: &str, names: &str) {
    let template = TempDir::new().unwrap();
    fill(&store_in(template.path(), engine));
    for name in names.split(' ').map(|name| format!("{prefix}{name}")) {
        let name = name.as_str();
        for plant in Plant::ALL {
            let trap = Trap::new();
            fs::create_dir_all(trap.path(name).parent().unwrap()).unwrap();
            trap.plant(plant, name);
            open_in_every_way(&trap, engine, &format!("{engine}, new store, {plant:?} link {name}"));

            let trap = Trap::new();
            copy_all(template.path(), trap.service.path());
            // Most of them are there only at some times.
            let _ = fs::remove_file(trap.path(name));
            trap.plant(plant, name);
            open_in_every_way(&trap, engine, &format!("{engine}, {plant:?} link {name}"));
        }
    }
}

#[test]
fn links_in_a_sled_store_are_not_followed() {
    links_are_not_followed("sled", "log/", SLED);
}

#[test]
fn links_next_to_a_sqlite_store_are_not_followed() {
    links_are_not_followed("sqlite", "log", SQLITE);
}

#[test]
fn links_to_directories_in_a_sled_store_are_not_followed() {
    let template = TempDir::new().unwrap();
    fill(&store_in(template.path(), "sled"));
    for name in DIRECTORIES {
        let trap = Trap::new();
        copy_all(template.path(), trap.service.path());
        // An odd end makes the program try the store on a copy first.
        let mut records = File::options().append(true).open(trap.path("log/sled/db")).unwrap();
        records.write_all(&[7; 100]).unwrap();
        let _ = fs::remove_dir_all(trap.path(name));
        symlink(trap.private.path(), trap.path(name)).unwrap();
        open_in_every_way(&trap, "sled", &format!("link to a directory {name}"));
    }
}

#[test]
fn a_sqlite_store_is_found_through_a_link_to_its_file() {
    let directory = TempDir::new().unwrap();
    fill(&store_in(directory.path(), "sqlite"));
    let link = directory.path().join("link");
    symlink(directory.path().join("log"), &link).unwrap();
    let store = format!("sqlite:{}", link.display());
    let app = App::on(&store);
    assert_eq!(app.all_pets().len(), 1);
    let second = petstore(["log", "stat", "--store", &format!("sqlite:{}/log", directory.path().display())]);
    assert!(second.stderr.contains("in use by another process"), "by either name: {}", second.stderr);
}
