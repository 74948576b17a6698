//! The program as an operator sees it: the first start, the messages, the exit codes.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use harness::{App, eventually, finished, petstore, program, root, serve, signal};

#[test]
fn the_first_start_on_a_terminal_creates_a_key_and_prints_commands_that_work_when_pasted() {
    let directory = tempfile::Builder::new().prefix("it's a directory ").tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let start = || {
        let _ = fs::remove_file(path("terminal"));
        // `script` runs it on a new terminal, and ends with it.
        let service = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command"])
            .arg(format!("echo $$ > pid; exec {} serve --listen 127.0.0.1:0", program().display()))
            .arg("terminal")
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let printed = eventually("the service says where its page is", || {
            let printed = String::from_utf8_lossy(&fs::read(path("terminal")).ok()?).replace('\r', "");
            // The whole block was written at once.
            let block = printed.split("\npetstore 0").nth(1)?.to_owned();
            block.contains("/docs\n").then_some((printed, block))
        });
        (service, printed)
    };
    let stop = |mut service: Child| {
        signal(fs::read_to_string(path("pid")).unwrap().trim().parse().unwrap(), "TERM");
        assert_eq!(service.wait().unwrap().code(), Some(0));
    };

    let (service, (printed, block)) = start();
    assert!(!printed.contains("WARN") && !printed.contains("listens on"), "{printed}");
    assert!(block.contains("is ready: 0 pets in sled:petstore-data/log\n"), "{block}");
    let commands: Vec<_> = block.lines().filter(|line| line.starts_with("  curl ")).collect();
    let [add, list] = commands[..] else { panic!("two commands: {block}") };
    let rex = r#"{"id":1,"name":"Rex","categoryId":7}"#;
    for (command, shown) in [(add, rex), (list, &format!("[{rex}]"))] {
        let mut pasted = Command::new("bash");
        pasted.args(["-c", &format!("{command} --silent --show-error")]).current_dir(directory.path());
        assert_eq!(finished(&mut pasted).stdout, shown);
    }
    let data = path("petstore-data");
    let key = fs::read_to_string(data.join("first-key")).unwrap();
    assert!(!printed.contains(key.trim()), "no key in the output");
    let mode = |name: &str| fs::metadata(data.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("first-key"), mode("keys.toml"), mode(".")), (0o600, 0o600, 0o700));
    stop(service);

    let (service, (_, block)) = start();
    assert!(block.contains("is ready: 1 pet in ") && !block.contains("curl"), "{block}");
    stop(service);
}

#[test]
fn the_first_start_of_a_service_logs_where_its_key_is() {
    let mut app = App::stopped("memory:", &[]);
    fs::remove_file(app.keys_file()).unwrap();
    app.start_again();
    let first_key = app.directory().join("first-key");
    app.wait_for_log(&format!("first API key issued file={}", first_key.display()));
    let (stdout, stderr) = app.printed();
    assert!(stdout.starts_with("petstore ") && stdout.lines().count() == 1, "the address: {stdout}");
    assert!(!stderr.contains("WARN"), "{stderr}");
}

#[test]
fn keys_are_issued_listed_and_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let mistyped = directory.path().join("new/keys.toml");
    petstore(["keys", "issue", "--name", "a", "--keys", mistyped.to_str().unwrap()])
        .exits_with(1)
        .says("new does not exist: create it, or correct the path");
    assert!(!directory.path().join("new").exists(), "nothing is created");
    let file = directory.path().join("keys.toml");
    let file = file.to_str().unwrap();
    let issued = petstore(["keys", "issue", "--name", "a", "--keys", file]).exits_with(0);
    let announced =
        |finished: &str| finished.lines().filter(|line| line.contains("created the key file")).count();
    assert_eq!(announced(&issued.stderr), 1, "{}", issued.stderr);
    let second = petstore(["keys", "issue", "--name", "b", "--keys", file]);
    assert_eq!((second.code, announced(&second.stderr)), (Some(0), 0), "{}", second.stderr);
    let key = issued.stdout.lines().last().unwrap();
    assert!(key.starts_with("petstore_") && !key.contains(' '), "the key stands alone: {key}");
    let listed = petstore(["keys", "list", "--keys", file]);
    assert!(listed.stdout.contains(" a\n") && !listed.stdout.contains(key), "{}", listed.stdout);
    assert!(!fs::read_to_string(file).unwrap().contains(key), "the file holds hashes");
    assert!(listed.stdout.contains("active") && !listed.stdout.contains("revoked"), "{}", listed.stdout);

    let row = |listed: &str, name: &str| {
        let row = listed.lines().find(|line| line.ends_with(&format!(" {name}")));
        row.unwrap_or_else(|| panic!("{name} in {listed}")).to_owned()
    };
    let first = row(&listed.stdout, "a");
    let id = first.split_whitespace().next().unwrap();
    petstore(["keys", "issue", "--name", "b", "--keys", file]).exits_with(0);
    petstore(["keys", "revoke", "b", "--keys", file])
        .exits_with(1)
        .says("several keys have this name; use one of their ids instead: ");
    let revoked = petstore(["keys", "revoke", "a", "--keys", file]).exits_with(0);
    assert!(revoked.stdout.starts_with(&format!("revoked {id} (a)")), "{}", revoked.stdout);
    let listed = petstore(["keys", "list", "--keys", file]).stdout;
    let (first, second) = (row(&listed, "a"), row(&listed, "b"));
    assert!(first.contains("revoked") && !first.contains("active"), "{listed}");
    assert!(second.contains("active") && !second.contains("revoked"), "{listed}");

    petstore(["keys", "revoke", id, "--keys", file]).exits_with(0).prints("already revoked");
    petstore(["keys", "rotate", "a", "--keys", file]).exits_with(1).says(&format!("rotate {id}\n"));
    let mistyped = petstore(["keys", "revoke", "petstore_mistyped", "--keys", file]).exits_with(1);
    assert!(!mistyped.stderr.contains("mistyped"), "{}", mistyped.stderr);
    mistyped.says(&format!("no key has this id or name: `petstore keys list` shows the keys in {file}"));
}

#[test]
fn wrong_usage_exits_with_2_and_a_hint() {
    for wrong in [
        vec![],
        vec!["fly"],
        vec!["serve", "--listen", "nowhere"],
        vec!["serve", "--store", "tape:reel"],
        vec!["serve", "--store", "sled:"],
        vec!["serve", "--max-connections", "0"],
        vec!["serve", "--log-level", "nonsense"],
        vec!["serve", "--store", "nats://127.0.0.1:4222"],
        vec!["keys", "issue"],
        vec!["keys", "issue", "--name", "a", "--scope", "fly"],
        vec!["keys", "issue", "--name", "a", "--expires-in", "soon"],
        vec!["log", "verify", "--store", "x"],
        vec!["log", "find", "--store", "memory:", "--pet", "0"],
        vec!["log", "find", "--store", "memory:", "--since", "yesterday"],
        vec!["serve", "--drain", "-5s"],
        vec!["serve", "--drain-delay", "2d"],
        vec!["serve", "--max-pets", "1.5"],
    ] {
        let finished = petstore(&wrong).exits_with(2);
        assert!(!finished.stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn every_command_explains_itself() {
    let keys = "keys,keys issue,keys list,keys rotate,keys revoke";
    let log = "log,log stat,log verify,log export,log salvage,log import,log copy,log tail,log find";
    let others = "serve,openapi,health,completions,man";
    for command in [keys, log, others].into_iter().flat_map(|list| list.split(',')).chain([""]) {
        let help = petstore(command.split_whitespace().chain(["--help"]));
        let finished = help.exits_with(0).prints("Usage: petstore").prints("--help");
        for (flag, text) in flags(&finished.stdout) {
            if flag == "help" || flag == "version" {
                continue;
            }
            let is_setting = command == "serve" || CONNECTION_SETTINGS.contains(&flag.as_str());
            let variable = format!("PETSTORE_{}", flag.to_uppercase().replace('-', "_"));
            // With its end, because one name may be the beginning of another. The value is hidden where it may be secret.
            let named =
                text.contains(&format!("[env: {variable}=")) || text.contains(&format!("[env: {variable}]"));
            assert_eq!(named, is_setting, "{command:?}: --{flag} can be set as {variable}: {text}");
            assert_eq!(text.contains("[env: "), is_setting, "{command:?}: --{flag}: {text}");
        }
    }
}

#[test]
fn the_version_names_the_formats_as_the_documentation_shows_them() {
    let page = fs::read_to_string(root().join("docs/versioning.md")).unwrap();
    let shown = page.split("```").nth(1).expect("a block");
    assert_eq!(petstore(["--version"]).stdout, shown.trim_start());
    assert_eq!(petstore(["-V"]).stdout.lines().next(), shown.trim_start().lines().next());
    let document: serde_json::Value = serde_json::from_str(&petstore(["openapi"]).stdout).unwrap();
    assert!(shown.contains(&format!("API {}\n", document["info"]["version"].as_str().unwrap())));
}

/// The flags of other commands than `serve` that have an environment variable.
const CONNECTION_SETTINGS: [&str; 7] =
    ["base-url", "ca", "contact", "api-key-file", "keys", "staging-url", "store"];

/// Every flag that a help text lists, with the text about it.
fn flags(help: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in help.lines() {
        let listed = line.trim_start().starts_with('-').then(|| line.split_once("--")).flatten();
        if let Some((_, flag)) = listed {
            let name = flag.split(|c: char| c != '-' && !c.is_ascii_alphanumeric()).next().unwrap();
            found.push((name.to_owned(), String::new()));
        }
        if let Some((_, text)) = found.last_mut() {
            text.push_str(line.trim());
            text.push(' ');
        }
    }
    found
}

#[test]
fn plain_http_stays_on_this_machine_by_default() {
    for (flag, waiver) in [("--listen", "--insecure-http"), ("--admin-listen", "--admin-insecure-http")] {
        serve("memory:", &[flag, "0.0.0.0:0"]).exits_with(1).says(waiver);
    }
}

#[test]
fn commands_work_when_their_output_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let (store, keys) = (directory.path().join("log"), directory.path().join("keys.toml"));
    let mut service = Command::new(program())
        .args(["serve", "--listen", "127.0.0.1:0", "--store", &format!("sled:{}", store.display()), "--keys"])
        .arg(&keys)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Both readers are gone before a word is said.
    drop((service.stdout.take(), service.stderr.take()));
    while !store.join("mark").exists() {
        assert!(service.try_wait().unwrap().is_none(), "the service still runs");
        thread::sleep(Duration::from_millis(20));
    }
    signal(service.id(), "TERM");
    assert_eq!(service.wait().unwrap().code(), Some(0));
}

#[test]
fn no_password_is_printed() {
    for url in ["nats://me:s3cret@host:4222", "pg://me:s3cret@host/pets"] {
        let rejected = petstore(["log", "stat", "--store", url]).exits_with(2).says("--store").says("STREAM");
        assert!(!rejected.stderr.contains("s3cret"), "{}", rejected.stderr);
    }
    for url in ["postgres://me:p/x@s3cret@127.0.0.1:1/db", "nats://me:p@s3cret@127.0.0.1:1/S"] {
        let rejected = petstore(["log", "stat", "--store", url]).exits_with(1);
        assert!(!rejected.stderr.contains("s3cret"), "{}", rejected.stderr);
    }
    for command in [["serve", "--help"].as_slice(), &["log", "stat", "--help"]] {
        let help = Command::new(program())
            .args(command)
            .env("PETSTORE_STORE", "nats://me:s3cret@host:4222/PETS")
            .output()
            .unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.contains("PETSTORE_STORE") && !help.contains("s3cret"), "{help}");
    }
}

#[test]
fn a_log_is_not_copied_onto_itself_or_into_its_source() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let store = |name: &str| format!("sled:{}", path(name).display());
    let (log, other) = (store("log"), store("other"));
    App::on(&log).terminate();
    petstore(["log", "copy", "--from", &log, "--to", &store("./log")]).exits_with(1).says("the same log");
    petstore(["log", "copy", "--from", &log, "--to", &other]).exits_with(0);
    let inside = format!("sqlite:{}", path("other/../log/copy.db").display());
    for from in [&["copy", "--from", &log][..], &["salvage", "--from", &other, "--also", &log]] {
        petstore([&["log"], from, &["--to", &inside]].concat()).exits_with(1).says("is inside the store");
    }
    assert!(!path("log/copy.db").exists());
}
