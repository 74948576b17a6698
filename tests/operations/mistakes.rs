//! What the program says after common mistakes and mishaps on the command line: the cause, and what to do about it.

use std::{
    fs::{self, File, OpenOptions},
    io::Read as _,
    net::TcpListener,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
};

use adapters::access::api_keys::{ApiKey, KeyFile};
use harness::{App, Finished, finished, key_file, petstore, program, serve, signal, wait_until};
use tempfile::TempDir;

use super::tls::start_secure;

/// A closed store with so many pets, and its URL.
fn store_with(pets: usize) -> (TempDir, String) {
    let directory = TempDir::new().unwrap();
    let store = format!("sled:{}", directory.path().join("log").display());
    let mut app = App::on(&store);
    let name = "x".repeat(100);
    for _ in 0..pets {
        app.add(&name);
    }
    assert!(app.terminate().success());
    (directory, store)
}

/// Runs a command whose standard output is a full disk.
fn on_a_full_disk(arguments: &[&str]) -> Finished {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    finished(Command::new(program()).args(arguments).stdout(full))
}

fn interrupt(mut command: Child, name: &str) -> Finished {
    signal(command.id(), name);
    let code = command.wait().unwrap().code();
    let mut stderr = String::new();
    command.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    Finished { code, stdout: String::new(), stderr }
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    let url = "http://me:s3cret@127.0.0.1:8080";
    let health = petstore(["health", url]).exits_with(2).says("expected http://HOST:PORT");
    assert!(!health.stderr.contains("s3cret"), "{}", health.stderr);
    let store = "postgres://me:s3cret@127.0.0.1/pets";
    let key = "petstore_s3cret";
    for (command, sentence) in [
        (vec!["log", "verify", store], "unexpected argument '…' found"),
        (vec!["keys", "list", key], "unexpected argument '…' found"),
        (vec!["log", store], "unrecognized subcommand '…'"),
        (vec!["keys", key], "unrecognized subcommand '…'"),
        (vec![store], "unrecognized subcommand '…'"),
    ] {
        let rejected = petstore(command).exits_with(2).says(sentence).says("write a value after its flag");
        assert!(!rejected.stderr.contains("s3cret"), "{rejected:?}");
    }
    petstore(["log", "verfy"]).exits_with(2).says("unrecognized subcommand 'verfy'");
    let verify = petstore(["log", "verify", "--store", "http://127.0.0.1:1", "--api-key-file", key]);
    let verify = verify.exits_with(1).says("--api-key-file is an API key, not a file");
    assert!(!verify.stderr.contains("s3cret"), "{}", verify.stderr);
    let key = ApiKey::generate().unwrap();
    for command in [vec!["serve", "--keys"], vec!["log", "verify", "--head"], vec!["log", "import"]] {
        let rejected = petstore(command.into_iter().chain([key.reveal()]));
        let rejected =
            rejected.exits_with(2).says("an argument contains an API key, which other users can see");
        assert!(!rejected.stderr.contains(key.reveal()), "{rejected:?}");
    }
}

#[test]
fn a_store_on_a_disk_that_is_not_mounted_is_named() {
    let directory = TempDir::new().unwrap();
    let link = directory.path().join("log");
    symlink(directory.path().join("disk/log"), &link).unwrap();
    for engine in ["sled", "sqlite"] {
        let store = format!("{engine}:{}", link.display());
        let sentence = "is a link whose target cannot be read: mount its disk, or correct the link\n";
        petstore(["log", "verify", "--store", &store]).exits_with(1).says(sentence);
        serve(&store, &[]).exits_with(1).says(sentence);
    }
}

#[test]
fn a_store_whose_lock_was_deleted_is_still_in_use() {
    let app = App::on_engine("sled", &[]);
    fs::remove_file(app.directory().join("log/lock")).unwrap();
    let store = format!("sled:{}", app.directory().join("log").display());
    serve(&store, &[]).exits_with(1).says("another process uses the files of the store; stop it\n");
}

#[test]
fn an_import_of_a_directory_or_of_nothing_creates_no_log() {
    let directory = TempDir::new().unwrap();
    let (export, log) = (directory.path().to_str().unwrap(), directory.path().join("log"));
    let store = format!("sled:{}", log.display());
    let import = petstore(["log", "import", export, "--store", &store]);
    import.exits_with(1).says("Is a directory (os error 21); nothing was imported");
    // The program that should write to the pipe has failed.
    let mut import = Command::new(program());
    import.args(["log", "import", "-", "--store", &store]).stdin(Stdio::null());
    finished(&mut import)
        .exits_with(1)
        .says("petstore: cannot import standard input: it is empty; nothing was imported\n");
    assert!(!log.exists());
}

#[test]
fn an_address_in_use_is_named_with_the_cause() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let in_use = format!(
        "petstore: cannot listen on {address}: Address already in use (os error 98); choose another address or port with --listen\n"
    );
    serve("memory:", &["--listen", &address]).exits_with(1).says(&in_use);
    // An address of the documentation, which no machine has.
    serve("memory:", &["--insecure-http", "--listen", "192.0.2.1:0"]).exits_with(1).says(
        "petstore: cannot listen on 192.0.2.1:0: Cannot assign requested address (os error 99); choose another address or port with --listen\n",
    );
}

#[test]
fn two_listeners_on_one_address_are_named() {
    // Nothing is bound: the service rejects before it listens.
    for (listen, admin) in [("127.0.0.1:8080", "127.0.0.1:8080"), ("0.0.0.0:8080", "127.0.0.1:8080")] {
        let sentence = format!(
            "petstore: --listen {listen} and --admin-listen {admin} are the same address: choose another port for \
             --admin-listen\n"
        );
        let flags = ["--listen", listen, "--admin-listen", admin, "--insecure-http"];
        serve("memory:", &flags).exits_with(1).says(&sentence);
    }
}

#[test]
fn a_wrong_scheme_leads_to_the_right_one() {
    let secure = start_secure(&["--admin-listen", "127.0.0.1:0"]);
    let plain = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    let directory = secure.directory();
    let (ca, key) = (directory.join("ca.pem"), key_file(directory, &secure.key));
    let (ca, key) = (ca.to_str().unwrap(), key.to_str().unwrap());
    let target = format!("sled:{}", directory.join("copy").display());
    for (url, hint) in [
        (format!("http://{}", secure.admin()), "if the service uses TLS, use https:// instead of http://"),
        (
            format!("https://{}", plain.admin()),
            "the service does not use TLS: use http:// instead of https://",
        ),
    ] {
        let access = ["--ca", ca, "--api-key-file", key];
        for (command, code) in [
            (vec!["health", &url, "--ca", ca], 3),
            ([&["log", "verify", "--store", &url], &access[..]].concat(), 1),
            ([&["log", "tail", "--store", &url], &access[..]].concat(), 1),
            ([&["log", "copy", "--from", &url, "--to", &target], &access[..]].concat(), 1),
        ] {
            let rejected = petstore(&command);
            assert_eq!(rejected.code, Some(code), "{command:?}: {rejected:?}");
            assert!(rejected.stderr.contains(&url) && rejected.stderr.contains(hint), "{rejected:?}");
        }
    }
}

#[test]
fn a_file_without_a_certificate_is_named() {
    let directory = TempDir::new().unwrap();
    let ca = directory.path().join("ca.pem");
    for content in ["", "no certificate\n", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
        fs::write(&ca, content).unwrap();
        let ca = ca.to_str().unwrap();
        let rejected = petstore(["health", "https://127.0.0.1:1", "--ca", ca]).exits_with(3);
        let sentence = format!("{ca} holds no usable certificate: it contains no PEM certificate\n");
        assert!(rejected.stderr.contains(&sentence), "{content:?}: {rejected:?}");
    }
}

#[test]
fn a_command_that_cannot_print_its_result_fails() {
    let (directory, store) = store_with(1);
    let file = directory.path().join("export.jsonl");
    fs::write(&file, petstore(["log", "export", "--store", &store]).stdout).unwrap();
    let target = |name: &str| format!("sled:{}", directory.path().join(name).display());
    let (imported, copied, salvaged) = (target("imported"), target("copied"), target("salvaged"));
    let app = App::on("memory:");
    let url = format!("http://{}", app.address());
    for command in [
        vec!["health", &url],
        vec!["log", "export", "--store", &store],
        vec!["log", "stat", "--store", &store],
        vec!["log", "verify", "--store", &store],
        vec!["log", "find", "--pet", "1", "--store", &store],
        vec!["log", "tail", "--store", &store],
        vec!["log", "import", file.to_str().unwrap(), "--store", &imported],
        vec!["log", "copy", "--from", &store, "--to", &copied],
        vec!["log", "salvage", "--from", &store, "--to", &salvaged],
        vec!["openapi"],
    ] {
        let rest = match command[1..] {
            ["export", ..] => "; the export is incomplete: delete it, and export again where there is room\n",
            ["import" | "copy" | "salvage", ..] => "; everything was stored\n",
            _ => "\n",
        };
        let sentence = "petstore: cannot write to /dev/full: No space left on device (os error 28)";
        on_a_full_disk(&command).exits_with(1).says(&format!("{sentence}{rest}"));
    }
    petstore(["log", "verify", "--store", &imported]).exits_with(0);

    let keys = directory.path().join("keys.toml");
    let keys = keys.to_str().unwrap();
    on_a_full_disk(&["keys", "issue", "--name", "shop", "--keys", keys])
        .says("; revoke it and issue another\n");
    let [key] = &KeyFile::at(keys).keys().unwrap()[..] else { panic!("one key") };
    let rotated = on_a_full_disk(&["keys", "rotate", &key.id().0, "--keys", keys]);
    let lost = KeyFile::at(keys).keys().unwrap()[1].id();
    rotated.exits_with(1).says(&format!("; rotate {lost} with --overlap 0s\n"));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let issue = ["keys", "issue", "--name", "mute", "--keys", keys];
    let issued = finished(Command::new(program()).args(issue).stderr(full)).exits_with(0);
    assert!(
        issued.stdout.starts_with("petstore_"),
        "the key is printed even if nothing else can be: {issued:?}"
    );
}

#[test]
fn a_tail_from_beyond_the_end_names_the_end() {
    let (_directory, store) = store_with(2);
    let after = |position: &str| petstore(["log", "tail", "--after", position, "--store", &store]);
    after("3")
        .exits_with(1)
        .says("petstore: --after 3 is beyond the end of the log, which is at position 2\n");
    assert_eq!(after("2").code, Some(0));
}

#[test]
fn a_store_url_that_would_lead_elsewhere_is_rejected() {
    let not_a_url = "a path follows sqlite:, not a URL: write sqlite:PATH, without file: or //\n";
    for (store, sentence) in [
        ("sqlite:file:x.db", not_a_url),
        ("sqlite://host/path.db", not_a_url),
        (
            "sqlite:p.db?mode=ro",
            "a path follows sqlite:, without options: leave out the '?' and all after it\n",
        ),
        ("sqlite::memory:", "for a log in memory, write memory:\n"),
        ("sled:/", "the root directory cannot hold a store: name a path below it\n"),
    ] {
        petstore(["log", "stat", "--store", store]).exits_with(2).says(sentence);
    }
}

#[test]
fn a_wrong_environment_variable_is_named_with_its_flag() {
    let unknown = "unknown environment variable \"PETSTORE_OPS_LISTEN\": correct its name";
    let stat = &mut Command::new(program());
    finished(stat.args(["log", "stat"]).env("PETSTORE_OPS_LISTEN", "127.0.0.1:0"))
        .exits_with(2)
        .says(unknown);
    for (variable, value, flag) in [
        ("PETSTORE_LISTEN", "nowhere", "--listen"),
        ("PETSTORE_STORE", "mysql:x", "--store"),
        ("PETSTORE_ACCESS_LOG", "maybe", "--access-log"),
        ("PETSTORE_REQUIRE_DURABILITY", "most", "--require-durability"),
    ] {
        let serve = &mut Command::new(program());
        finished(serve.arg("serve").env(variable, value)).exits_with(2).says(&format!("for '{flag}"));
    }
}

#[test]
fn a_truncated_sqlite_file_leads_to_recover() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("log.db");
    let store = format!("sqlite:{}", path.display());
    let mut app = App::on(&store);
    for _ in 0..100 {
        app.add("Rex");
    }
    assert!(app.terminate().success());
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    petstore(["log", "verify", "--store", &store])
        .exits_with(1)
        .says("try .recover of the sqlite3 shell on a copy");
}

#[test]
fn an_interrupted_export_ends_although_its_reader_blocks_it() {
    // More than fits into a pipe.
    let (_directory, store) = store_with(400);
    for name in ["INT", "TERM", "HUP"] {
        let export = Command::new(program())
            .args(["log", "export", "--store", &store])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = export.id();
        wait_until("the export waits for its reader", || {
            fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at.contains("pipe"))
        });
        interrupt(export, name).exits_with(1).says("petstore: interrupted\n");
    }
}

#[test]
fn an_interrupted_command_says_whether_it_resumes() {
    let (directory, store) = store_with(1);
    let to = format!("sled:{}", directory.path().join("target").display());
    let key = key_file(directory.path(), "pk_unused");
    // It accepts connections, and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = format!("http://{}", silent.local_addr().unwrap());
    let salvage = ["salvage", "--from", &store, "--also", &service, "--to", &to];
    let commands: [(&[&str], &str); 4] = [
        (&["verify", "--store", &service], ""),
        (&["copy", "--from", &service, "--to", &to], "; start the command again to resume"),
        (&salvage, "; start the command again to resume"),
        (&[&salvage[..], &["--accept-gaps"]].concat(), "; start the command again to resume"),
    ];
    for (arguments, what_to_do) in commands {
        let mut command = Command::new(program());
        command.arg("log").args(arguments).arg("--api-key-file").arg(&key);
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let _waiting = silent.accept().unwrap();
        let interrupted = interrupt(command, "INT").exits_with(1);
        assert_eq!(interrupted.stderr, format!("petstore: interrupted{what_to_do}\n"), "{arguments:?}");
    }
}

#[test]
fn a_salvage_that_saves_nothing_fails() {
    let (directory, store) = store_with(2);
    File::create(directory.path().join("log/sled/db")).unwrap();
    let to = format!("sled:{}", directory.path().join("saved").display());
    petstore(["log", "salvage", "--from", &store, "--to", &to])
        .exits_with(1)
        .says(&format!(
            "petstore: nothing was salvaged: no commit at the start of {store} can be read; check the path\n"
        ))
        .prints("unreadable  1 to 2\n");
}

#[test]
fn a_salvage_names_a_missing_file_by_its_own_path() {
    let directory = TempDir::new().unwrap();
    let [lost, saved] = ["lost.db", "saved.db"].map(|name| directory.path().join(name).display().to_string());
    petstore(["log", "salvage", "--from", &format!("sqlite:{lost}"), "--to", &format!("sqlite:{saved}")])
        .exits_with(1)
        .says(&format!("petstore: there is no file {lost}; put it back, or check the path\n"));
    assert!(!Path::new(&saved).exists());
}
