//! The files of a store are deleted, moved or replaced while the service runs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::{App, REX, eventually, head_hash, key_file, petstore, program};

/// A way to lose a store, given the directory that holds it and nothing else.
type Loss = fn(&Path);

/// The service may create a file while the directory is being emptied, as long as the directory is there.
fn delete(directory: &Path) {
    eventually("the directory is gone", || fs::remove_dir_all(directory).ok());
}

/// A service whose store has a directory to itself, and that directory.
fn start(engine: &str, file: &str) -> (App, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    fs::create_dir(&store).unwrap();
    let url = format!("{engine}:{}", store.join(file).display());
    (App::start_on(program(), &url, directory, &["--admin-listen", "127.0.0.1:0"]), store)
}

#[test]
fn nothing_is_acknowledged_once_the_files_of_the_store_are_gone() {
    let losses: [(&str, Loss); 4] = [
        ("the directory is deleted", delete),
        ("the directory is deleted and created again", |directory| {
            delete(directory);
            fs::create_dir(directory).unwrap();
        }),
        ("the directory is moved away", |directory| {
            fs::rename(directory, directory.with_extension("old")).unwrap();
        }),
        ("the lock is deleted", |directory| {
            let lock = ["lock", "pets.db.lock"].map(|name| directory.join(name));
            fs::remove_file(lock.iter().find(|path| path.exists()).unwrap()).unwrap();
        }),
    ];
    for (engine, file) in [("sled", ""), ("sqlite", "pets.db")] {
        for (what, lose) in losses {
            let case = format!("{engine}, {what}");
            let (app, store) = start(engine, file);
            assert_eq!(app.post(REX).status, 201, "{case}");
            lose(&store);

            let rejected = app.post(REX);
            assert_eq!(rejected.status, 503, "{case}: {}", rejected.text());
            let ready = app.probe("/readyz");
            assert_eq!(ready.status, 503, "{case}");
            assert!(ready.text().contains("were deleted, moved or replaced"), "{case}: {}", ready.text());
            assert_eq!(app.post(REX).status, 503, "{case}: it stays closed");
            assert_eq!(app.all_pets().len(), 1, "{case}: the pets can still be read");
            let log = app.wait_for_log("export the log from the running service before you stop it");
            let names_the_lock = log.lines().any(|line| line.contains("lock was deleted, moved or replaced"));
            assert_eq!(names_the_lock, what == "the lock is deleted", "{case}: {log}");
            assert!(log.contains("if all files but the lock are in place"), "{case}: {log}");
        }
    }
}

#[test]
fn without_an_admin_listener_the_advice_is_to_save_the_pets() {
    let app = App::on_engine("sled", &[]);
    delete(&app.directory().join("log"));
    app.wait_for_log("save the pets with GET /v1/pets before you stop the service");
}

#[test]
fn the_whole_log_is_exported_and_copied_from_the_running_service_after_its_files_are_gone() {
    for (engine, file) in [("sled", ""), ("sqlite", "pets.db")] {
        // The log is not read before its files are deleted.
        let (mut app, store) = start(engine, file);
        for _ in 0..3 {
            assert_eq!(app.post(REX).status, 201, "{engine}");
        }
        let (key, service) = (app.log_key(), format!("http://{}", app.admin()));
        let key = key_file(app.directory(), &key);
        let log = |arguments: &[&str]| {
            petstore([&["log"], arguments, &["--api-key-file", key.to_str().unwrap()]].concat()).exits_with(0)
        };
        delete(&store);
        app.wait_until_not_ready();
        assert_eq!(app.post(REX).status, 503, "{engine}");

        let export = log(&["export", "--store", &service]).stdout;
        assert_eq!(export.lines().count(), 4, "{engine}: three commits and the manifest");
        let copy = format!("{engine}:{}", app.directory().join("copy").display());
        log(&["copy", "--from", &service, "--to", &copy]);
        let verified = log(&["verify", "--store", &service]);
        assert_eq!(verified.value("head hash"), head_hash(&copy), "{engine}");

        // The export is the whole history, so the node starts with it and nothing is given up.
        let backup = app.directory().join("export.jsonl");
        fs::write(&backup, export).unwrap();
        app.terminate();
        fs::create_dir(&store).unwrap();
        petstore(["log", "import", backup.to_str().unwrap(), "--store", app.store()]).exits_with(0);
        app.start_again();
        assert_eq!(app.post(REX).json()["id"], 4, "{engine}");
    }
}
