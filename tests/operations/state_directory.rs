//! A state directory that cannot be written: only the first start needs it.

use std::{fs, path::Path};

use harness::{App, files_below};
use tempfile::TempDir;

#[test]
fn a_state_directory_on_a_full_disk_stops_only_the_first_start() {
    let directory = TempDir::new().unwrap();
    let [state, earlier, store] = ["state", "earlier", "log"].map(|name| directory.path().join(name));
    fs::create_dir(&state).unwrap();
    fs::create_dir(&earlier).unwrap();
    let [state, earlier] = [&state, &earlier].map(|path| path.to_str().unwrap());
    let store = format!("sled:{}", store.display());
    let mut app = App::stopped(&store, &["--state", state]);
    // A full disk that holds the earlier state.
    let mount = r#"mount -t tmpfs -o size=16k tmpfs "$0" && cp "$1"/* "$0" 2>&-; ! cat /dev/zero 2>&- > "$0/full"; shift; exec "$@""#;
    let on_full_disk = ["unshare", "--mount", "sh", "-c", mount, state, earlier].map(str::to_owned);
    app.run_by(&on_full_disk);
    app.try_start_again()
        .expect_err("the record cannot be written")
        .exits_with(1)
        .says(&format!("the state file cannot be written to {state}"));

    app.run_by(&[]);
    app.start_again();
    app.add("Rex");
    assert!(app.terminate().success());
    for file in files_below(Path::new(state)) {
        fs::rename(&file, Path::new(earlier).join(file.file_name().unwrap())).unwrap();
    }
    app.run_by(&on_full_disk);
    app.start_again();
    assert_eq!(app.all_pets().len(), 1, "reads do not need the disk");
}

#[test]
fn a_node_with_a_state_file_is_not_advised_to_run_without_it() {
    let directory = TempDir::new().unwrap();
    let [state, store] = ["state", "log"].map(|name| directory.path().join(name));
    fs::create_dir(&state).unwrap();
    let state = state.to_str().unwrap();
    let mut app = App::stopped(&format!("sled:{}", store.display()), &["--state", state]);
    let mount = r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@""#;
    let read_only = ["unshare", "--mount", "sh", "-c", mount, state].map(str::to_owned);
    app.run_by(&read_only);
    let first = app.try_start_again().expect_err("there is no record");
    first.exits_with(1).says("or pass --state none to run without a state file");

    app.run_by(&[]);
    app.start_again();
    app.add("Rex");
    assert!(app.terminate().success());
    app.run_by(&read_only);
    let later = app.try_start_again().expect_err("the record cannot be updated");
    later.exits_with(1).says("with another --state or --state none, the node would accept any log");
}
