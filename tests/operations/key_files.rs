//! A key file that is lost, or that other users can change.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _};

use harness::{App, PostgresServer, petstore};
use tempfile::TempDir;

#[test]
fn a_key_file_that_was_lost_is_not_replaced() {
    let server = PostgresServer::start();
    for mut app in [App::on_engine("sled", &[]), App::on(&server.url("postgres"))] {
        app.add("Rex");
        assert!(app.terminate().success());
        let (file, store) = (app.keys_file(), app.store().to_owned());
        fs::rename(&file, file.with_extension("lost")).unwrap();
        for flags in [&[][..], &["--state", "none"], &["--listen-when-ready"]] {
            app.use_flags(flags);
            let rejected = app.try_start_again().expect_err("the log holds a pet").exits_with(1);
            assert_eq!(rejected.sentences(), 1, "{rejected:?}");
            rejected
                .says(" is not empty, but the key file ")
                .says("does not exist: correct the path, or restore it from a backup; only if")
                .says("create it with `petstore keys issue`\n");
            assert!(!file.exists() && !file.with_file_name("first-key").exists(), "{flags:?}");
        }
        app.use_flags(&[]);
        fs::rename(file.with_extension("lost"), &file).unwrap();
        app.start_again();
        assert_eq!(app.all_pets().len(), 1, "{store}");
    }
}

#[test]
fn a_mistyped_path_of_the_key_file_leaves_no_file_behind() {
    let mut app = App::on_engine("sled", &[]);
    app.add("Rex");
    assert!(app.terminate().success());
    let other = TempDir::new().unwrap();
    let mistyped = other.path().join("new/keys.toml");
    let flags = ["--listen", "127.0.0.1:0", "--store", app.store(), "--keys", mistyped.to_str().unwrap()];
    petstore([&["serve"][..], &flags].concat()).exits_with(1).says(" is not empty, but the key file ");
    assert!(!other.path().join("new").exists());
}

#[test]
fn a_failed_start_leaves_no_key_file() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for flags in [&[][..], &["--listen-when-ready"]] {
        let mut app = App::stopped("memory:", flags);
        fs::remove_file(app.keys_file()).unwrap();
        app.use_port(taken.local_addr().unwrap().port());
        let rejected = app.try_start_again().expect_err("the port is in use").exits_with(1);
        rejected.says("cannot listen on ");
        for name in ["keys.toml", "first-key"] {
            assert!(!app.directory().join(name).exists(), "{flags:?}: {name}");
        }
    }
}

#[test]
fn a_key_file_that_others_can_change_or_replace_is_rejected() {
    let mut app = App::stopped("memory:", &[]);
    let (directory, keys) = (app.directory().to_owned(), app.keys_file());
    let set_modes = |directory_mode: u32, file_mode: u32| {
        fs::set_permissions(&directory, fs::Permissions::from_mode(directory_mode)).unwrap();
        fs::set_permissions(&keys, fs::Permissions::from_mode(file_mode)).unwrap();
    };
    for (directory_mode, file_mode, path, what_to_do) in [
        (0o700, 0o620, &keys, "chmod go-w"),
        (0o700, 0o602, &keys, "chmod go-w"),
        (0o777, 0o600, &directory, "chmod o-w"),
    ] {
        set_modes(directory_mode, file_mode);
        let rejected = app.try_start_again().expect_err("others can add keys");
        let path = path.display();
        rejected.exits_with(1).says(&format!(
            "petstore: other users can write to {path} and add API keys: run {what_to_do} {path}\n"
        ));
    }
    set_modes(0o1777, 0o600);
    app.start_again();
}

#[test]
fn a_list_of_keys_warns_about_a_file_that_others_can_change() {
    let directory = TempDir::new().unwrap();
    let keys = directory.path().join("keys.toml");
    let keys = keys.to_str().unwrap();
    let issued = petstore(["keys", "issue", "--name", "shop \u{202e}nimda's", "--keys", keys]).exits_with(0);
    let listed = petstore(["keys", "list", "--keys", keys]);
    assert_eq!(listed.stderr, "");
    for text in [&issued.stderr, &listed.stdout] {
        let is_escaped = text.contains("shop \\u{202e}nimda's") && !text.contains('\u{202e}');
        assert!(is_escaped, "a name that would reorder the line: {text}");
    }
    fs::set_permissions(keys, fs::Permissions::from_mode(0o666)).unwrap();
    let listed = petstore(["keys", "list", "--keys", keys]).exits_with(0);
    assert!(listed.stderr.starts_with("warning: other users can write to "), "{listed:?}");
}

#[test]
fn a_service_reports_a_key_file_that_becomes_writable_for_others() {
    let app = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    let set_mode = |mode| fs::set_permissions(app.keys_file(), fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o666);
    app.wait_for_log("other users can write to ");
    assert!(app.metrics().contains("petstore_key_file_usable 0\n"));
    assert_eq!(app.get("/v1/pets").status, 200, "the loaded keys stay active");
    set_mode(0o600);
    app.wait_for_log("key file usable again");
    assert!(app.metrics().contains("petstore_key_file_usable 1\n"));
}
