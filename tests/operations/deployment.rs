//! The files in docs/deploy do what docs/deploy.md says: each is run, or judged by the tool that reads it.

use std::{
    env, fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::Duration,
};

use harness::{
    App, Gateway, REX, Startup, files_below, free_port, key_file, not_run, petstore, program, python_tool,
    root, signal, succeed, wait_until,
};
use regex::Regex;
use rustix::process::geteuid;

pub(crate) fn file(name: &str) -> PathBuf {
    root().join("docs/deploy").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap()
}

/// A running nginx. Killed when dropped.
pub(crate) struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it.
        signal(self.0.id(), "TERM");
        self.0.wait().unwrap();
    }
}

/// Starts nginx with the documented configuration, on other ports and with other paths, and with these parts replaced.
pub(crate) fn nginx_with(directory: &Path, https: u16, http: u16, changes: &[(&str, &str)]) -> Nginx {
    let certified = rcgen::generate_simple_self_signed(["pets.example.com".to_owned()]).unwrap();
    fs::write(directory.join("fullchain.pem"), certified.cert.pem()).unwrap();
    fs::write(directory.join("privkey.pem"), certified.signing_key.serialize_pem()).unwrap();
    let place = directory.to_str().unwrap();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {place}/{kind};"))
        .concat();
    let mut configuration = text("nginx.conf");
    for (documented, here) in [
        ("listen 443 ", format!("listen 127.0.0.1:{https} ")),
        ("listen 80;", format!("listen 127.0.0.1:{http};")),
        ("/etc/ssl/petstore", place.to_owned()),
        ("/var/log/nginx", place.to_owned()),
        ("/run/nginx.pid", format!("{place}/pid")),
        ("http {\n", format!("http {{ {temporary}\n")),
    ]
    .into_iter()
    .chain(changes.iter().map(|(documented, here)| (*documented, (*here).to_owned())))
    {
        assert!(configuration.contains(documented), "{documented}");
        configuration = configuration.replace(documented, &here);
    }
    let path = directory.join("nginx.conf");
    fs::write(&path, configuration).unwrap();
    let nginx = || {
        let mut nginx = Command::new("nginx");
        nginx.arg("-c").arg(&path).arg("-e").arg(directory.join("errors"));
        nginx
    };
    succeed(nginx().arg("-t"));
    let mut server = Nginx(nginx().args(["-g", "daemon off;"]).spawn().unwrap());
    let listens = || TcpStream::connect((Ipv4Addr::LOCALHOST, http)).is_ok();
    Startup::new("nginx", &directory.join("errors"))
        .wait(&mut server.0, listens, || format!("nothing listens on port {http}"));
    server
}

#[test]
fn nginx_terminates_tls_in_front_of_the_service() {
    let app = App::start();
    let directory = tempfile::tempdir().unwrap();
    let (https, http) = (free_port(), free_port());
    let _nginx = nginx_with(directory.path(), https, http, &[("127.0.0.1:8080", &app.address().to_string())]);
    let curl = |url: &str, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--http2", "--write-out", "\n%{http_code} %{http_version}"])
            .args(["--resolve", &format!("pets.example.com:{https}:127.0.0.1")])
            .arg("--cacert")
            .arg(directory.path().join("fullchain.pem"))
            .args(["--header", &format!("Authorization: Bearer {}", app.key)])
            .args(more)
            .arg(url);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let pets = format!("https://pets.example.com:{https}/v1/pets");
    wait_until("nginx responds", || curl(&pets, &[]).ends_with("\n200 2"));
    let created = curl(&pets, &["--json", REX]);
    assert!(created.ends_with("\n201 2"), "{created}");
    assert!(curl(&pets, &["--http1.1"]).contains("Rex"));
    // The limit of the proxy is that of the service.
    let large = |length: usize| format!(r#"{{"name":"{}","categoryId":7}}"#, "a".repeat(length));
    assert!(curl(&pets, &["--json", &large(60_000)]).ends_with("\n400 2"));
    assert!(curl(&pets, &["--json", &large(70_000)]).ends_with("\n413 2"));
    let plain = curl(&format!("http://127.0.0.1:{http}/v1/pets"), &[]);
    assert!(plain.ends_with("\n403 1.1"), "{plain}");
    let logged = fs::read_to_string(directory.path().join("petstore.log")).unwrap();
    assert!(logged.contains("GET /v1/pets") && !logged.contains(&app.key), "{logged}");
}

#[test]
fn the_container_image_is_sound_and_runs_without_root() {
    succeed(python_tool("hadolint").arg(root().join("Dockerfile")));
    let schema = ["--builtin-schema", "vendor.compose-spec"];
    succeed(python_tool("check-jsonschema").args(schema).arg(root().join("compose.yaml")));
    let directory = tempfile::tempdir().unwrap();
    let context = directory.path().join("image");
    succeed(Command::new(file("collect-image")).arg(&context).arg(program()));
    if !geteuid().is_root() {
        return not_run("deployment::the_container_image", "a separate root directory needs root");
    }
    succeed(Command::new(root().join("tests/deploy/run-image")).arg(&context));
}

#[test]
fn prometheus_and_kubernetes_accept_their_files() {
    let monitoring = root().join("docs/monitoring");
    let check = |config: PathBuf| succeed(Command::new("promtool").args(["check", "config"]).arg(config));
    check(monitoring.join("prometheus.yml"));
    for name in ["prometheus.yml", "prometheus-kubernetes.yml"] {
        let config = fs::read_to_string(monitoring.join(name)).unwrap();
        assert!(config.contains("\n  evaluation_interval: 15s\n"), "{name}: alerts fire late");
    }
    // The configuration for a cluster names the file of a key.
    let directory = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(monitoring.join("prometheus-kubernetes.yml")).unwrap();
    let service = config.split("names: [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let service = format!("\nkind: Service\nmetadata:\n  name: {service}\n");
    assert!(text("kubernetes.yaml").contains(&service), "kubernetes.yaml lacks{service}");
    let config = config.replace("/etc/prometheus", directory.path().to_str().unwrap());
    fs::write(directory.path().join("prometheus.yml"), config).unwrap();
    fs::write(directory.path().join("petstore-metrics-key"), "key").unwrap();
    fs::copy(monitoring.join("alerts.yml"), directory.path().join("alerts.yml")).unwrap();
    check(directory.path().join("prometheus.yml"));
    let judged = succeed(python_tool("kubernetes-validate").arg("--strict").arg(file("kubernetes.yaml")));
    assert!(!judged.contains("ERROR"), "{judged}");
}

#[test]
fn every_variable_in_the_files_is_a_setting_of_the_service() {
    let help = petstore(["serve", "--help"]).stdout + &petstore(["log", "export", "--help"]).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = 0;
    let units = "petstore.service petstore-backup.service petstore-copy.service petstore-verify.service";
    for name in units.split(' ').chain(["../../Dockerfile", "kubernetes.yaml", "debian/default"]) {
        let text = text(name);
        for variable in text.split("PETSTORE_").skip(1) {
            let end = variable.find(|c: char| c != '_' && !c.is_ascii_uppercase()).unwrap_or(variable.len());
            let variable = format!("[env: PETSTORE_{}", &variable[..end]);
            let named = help.contains(&format!("{variable}=")) || help.contains(&format!("{variable}]"));
            assert!(named, "{name}: {variable}");
            found += 1;
        }
    }
    assert!(found > 10, "{found} variables");
}

/// Copied as it is, a trusted range would let every machine in it forge client addresses.
#[test]
fn no_file_trusts_a_proxy_before_it_is_named() {
    for path in files_below(&root().join("docs/deploy")) {
        let text = fs::read_to_string(&path).unwrap();
        let settings = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let trusting: Vec<_> = settings
            .filter(|line| line.contains("TRUSTED_PROXY") || line.contains("--trusted-proxy"))
            .collect();
        assert!(trusting.is_empty(), "{}: {trusting:?}", path.display());
    }
}

/// A directory of backups, and what makes one.
struct Backups {
    directory: PathBuf,
    keys: PathBuf,
}

impl Backups {
    fn new(parent: &Path, keys: PathBuf) -> Self {
        let directory = parent.join("backups");
        fs::create_dir(&directory).unwrap();
        Self { directory, keys }
    }

    /// The command that backs up this store.
    fn backup(&self, store: &str) -> Command {
        let mut backup = Command::new(file("petstore-backup"));
        backup
            .arg(&self.directory)
            .env("PATH", search_path())
            .env("PETSTORE_STORE", store)
            .env("PETSTORE_KEYS", &self.keys);
        backup
    }

    /// The names of the files that end like this, the oldest first.
    fn names(&self, kind: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(kind) && !name.starts_with('.')).collect();
        names.sort();
        names
    }

    fn newest(&self, kind: &str) -> PathBuf {
        self.directory.join(self.names(kind).pop().unwrap())
    }
}

/// Where the scripts find `petstore`.
pub(crate) fn search_path() -> String {
    format!("{}:{}", program().parent().unwrap().display(), env::var("PATH").unwrap())
}

#[test]
fn a_backup_is_verified_and_old_ones_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", directory.path().join("log").display());
    let admin = ["--admin-listen", "127.0.0.1:0"];
    let app = App::on_with(&store, &admin);
    app.add("Rex");
    let backups = Backups::new(directory.path(), app.keys_file());
    let empty = petstore(["log", "export", "--store", "memory:"]).stdout;
    for day in 10..26 {
        for kind in ["jsonl", "keys.toml"] {
            fs::write(backups.directory.join(format!("202501{day}T000000Z.{kind}")), &empty).unwrap();
        }
    }
    let rejected = backups.backup(&store).output().unwrap();
    assert!(!rejected.status.success(), "the store is in use: {rejected:?}");
    assert_eq!(backups.names("jsonl").len(), 16, "a backup that failed is not there, and removes nothing");
    let key = key_file(directory.path(), &app.issue_key(&["--name", "backup", "--scope", "log"]));
    let url = format!("http://{}", app.admin());
    wait_until("the running service is backed up, once the key is active", || {
        let online = backups.backup(&store).arg(&url).env("PETSTORE_API_KEY_FILE", &key).output().unwrap();
        online.status.success()
    });
    assert_eq!(backups.names("jsonl").len(), 14);
    app.signal("TERM");

    wait_until("the service is gone", || {
        let made = backups.backup(&store).output().unwrap();
        let line = String::from_utf8(made.stdout).unwrap();
        let expected = "petstore-backup: wrote ";
        made.status.success() && line.starts_with(expected) && line.ends_with(".keys.toml, commits: 1\n")
    });
    assert_eq!((backups.names("jsonl").len(), backups.names("keys.toml").len()), (14, 14));
    let restored = format!("sled:{}", directory.path().join("restored").display());
    let newest = backups.newest("jsonl");
    petstore(["log", "import", newest.to_str().unwrap(), "--store", &restored]).exits_with(0);
    assert_eq!(petstore(["log", "find", "--pet", "1", "--store", &restored]).code, Some(0));
    assert_eq!(fs::read(backups.newest("keys.toml")).unwrap(), fs::read(app.keys_file()).unwrap());
}

#[test]
fn a_log_that_does_not_continue_the_newest_backup_is_not_backed_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = |name: &str| format!("sled:{}", directory.path().join(name).display());
    let log_with = |name: &str, pets: &[&str]| {
        let mut app = App::on(&store(name));
        for pet in pets {
            app.add(pet);
        }
        assert!(app.terminate().success());
        app
    };
    let mut app = log_with("log", &["Rex"]);
    log_with("empty", &[]);
    log_with("other", &["Rex", "Bella", "Tom"]);
    let first_commit = directory.path().join("first-commit.jsonl");
    fs::write(&first_commit, petstore(["log", "export", "--store", &store("log")]).stdout).unwrap();
    petstore(["log", "import", first_commit.to_str().unwrap(), "--store", &store("shorter")]).exits_with(0);
    let mut add = |name: &str| {
        app.start_again();
        app.add(name);
        assert!(app.terminate().success());
    };
    add("Bella");

    let backups = Backups::new(directory.path(), directory.path().join("keys.toml"));
    fs::write(&backups.keys, "").unwrap();
    let metrics = directory.path().join("petstore-backup.prom");
    let back_up = |name: &str| {
        backups.backup(&store(name)).env("TEXTFILE_DIRECTORY", directory.path()).output().unwrap()
    };
    let succeeds = || {
        let output = back_up("log");
        assert!(output.status.success(), "{output:?}");
    };
    succeeds();
    let reported = fs::read_to_string(&metrics).unwrap();
    assert!(reported.contains("\npetstore_backup_last_success_timestamp_seconds 1"), "{reported}");
    fs::remove_file(&metrics).unwrap();
    for name in ["empty", "shorter", "other"] {
        let rejected = back_up(name);
        let error = String::from_utf8(rejected.stderr).unwrap();
        assert!(!rejected.status.success(), "{name}");
        assert!(error.contains("does not continue") && error.contains("an empty directory"), "{error}");
        assert_eq!(backups.names("jsonl").len(), 1, "{name}");
        assert!(!metrics.exists(), "{name}");
    }

    // The same log again, usually within the same second, and with one more pet.
    succeeds();
    succeeds();
    add("Tom");
    succeeds();
    assert_eq!(backups.names("jsonl").len(), 4);
    assert!(metrics.exists());

    // A newest backup without its end proves nothing about the log.
    for content in ["", "{\"v\":1}\n"] {
        fs::write(backups.newest("jsonl"), content).unwrap();
        let rejected = back_up("log");
        let error = String::from_utf8(rejected.stderr).unwrap();
        assert!(!rejected.status.success() && error.contains("is incomplete"), "{error}");
    }
}

#[test]
fn a_backup_restarts_only_a_service_that_was_running() {
    let unit = text("petstore-backup.service");
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display().to_string();
    // Stands in for systemctl: the file `active` is the state of the service.
    let systemctl = format!(
        "#!/bin/sh\ncase $1 in is-active) test -e {place}/active ;; stop) rm {place}/active ;; start) touch {place}/active ;; esac\n"
    );
    fs::write(directory.path().join("systemctl"), systemctl).unwrap();
    succeed(Command::new("chmod").arg("+x").arg(directory.path().join("systemctl")));
    let run = |setting: &str| {
        let command = unit.lines().find_map(|line| line.strip_prefix(setting)).unwrap();
        let script = command.strip_prefix("=+/bin/sh -c '").unwrap().strip_suffix('\'').unwrap();
        let path = format!("{place}:{}", env::var("PATH").unwrap());
        succeed(Command::new("/bin/sh").args(["-c", &script.replace("/run", &place)]).env("PATH", path));
        directory.path().join("active").exists()
    };
    assert_eq!((run("ExecStartPre"), run("ExecStopPost")), (false, false), "stopped on purpose");
    fs::write(directory.path().join("active"), "").unwrap();
    assert_eq!((run("ExecStartPre"), run("ExecStopPost")), (false, true), "it was running");
    assert!(!run("ExecStartPre"), "stops again");
}

#[test]
fn a_check_of_the_log_reports_a_deleted_object() {
    let directory = tempfile::tempdir().unwrap();
    let (gateway, store) = (Gateway::shared(), Gateway::shared().url());
    let mut app = App::stopped(&store, &[]);
    app.run_by(&gateway.wrapper());
    app.start_again();
    for name in ["Rex", "Tom", "Kit"] {
        app.add(name);
    }
    let verify = || {
        Command::new(file("petstore-verify"))
            .env("PATH", search_path())
            .env("PETSTORE_STORE", &store)
            .env("TEXTFILE_DIRECTORY", directory.path())
            .envs(gateway.variables())
            .output()
            .unwrap()
    };
    let reported = || fs::read_to_string(directory.path().join("petstore-verify.prom")).unwrap();
    let verified = verify();
    assert!(verified.status.success(), "{verified:?}");
    assert!(reported().contains("\npetstore_verify_failed 0\n"), "{}", reported());
    assert!(reported().contains("\npetstore_verify_last_run_timestamp_seconds 1"), "{}", reported());

    let bucket = store.split('/').nth(2).unwrap();
    let second = gateway.keys(bucket).into_iter().find(|key| key.ends_with("/commits/00000000000000000002"));
    gateway.request("DELETE", &format!("{bucket}/{}", second.unwrap()), None);
    let verified = verify();
    assert_eq!(verified.status.code(), Some(1), "{verified:?}");
    let printed = String::from_utf8(verified.stdout).unwrap();
    assert!(printed.starts_with("damaged ") && printed.contains("first bad   2\n"), "{printed}");
    let error = String::from_utf8(verified.stderr).unwrap();
    assert!(error.contains("petstore log salvage") && error.contains("--also"), "{error}");
    assert!(reported().contains("\npetstore_verify_failed 1\n"), "{}", reported());
    assert_eq!(app.get("/readyz").status, 200, "the node itself does not read old commits");
}

/// Installs the units of these names in a directory, and lets systemd judge each of them with its drop-ins.
fn verify_units(directory: &Path, names: &[String]) {
    let scripts = format!("{}/", file("").display());
    for name in names {
        let installed = text(name).replace("/usr/local/bin/", &scripts);
        let installed = installed.replace("/usr/bin/petstore", program().to_str().unwrap());
        fs::write(directory.join(name), installed).unwrap();
    }
    for name in names {
        let mut check = Command::new("systemd-analyze");
        succeed(check.args(["verify", "--man=no", "--recursive-errors=yes"]).arg(directory.join(name)));
    }
}

#[test]
fn the_units_for_backups_copies_and_checks_are_valid() {
    let names = ["backup.service", "backup.timer", "copy.service", "verify.service", "verify.timer"];
    let names = names.map(|name| format!("petstore-{name}"));
    verify_units(tempfile::tempdir().unwrap().path(), &names);
    assert!(text("petstore-copy.service").contains("\nRestart=always\n"));
}

/// Each `cat > /etc/systemd/system/UNIT.d/NAME.conf <<'END'` of the pages.
#[test]
fn the_drop_ins_on_the_pages_are_valid() {
    let drop_in =
        Regex::new(r"(?s)cat > /etc/systemd/system/([a-z.-]+)\.d/[a-z0-9]+\.conf <<'END'\n(.*?)\nEND\n")
            .unwrap();
    let mut found = 0;
    for page in ["deploy.md", "backup.md"] {
        let page = fs::read_to_string(root().join("docs").join(page)).unwrap();
        for documented in drop_in.captures_iter(&page) {
            let directory = tempfile::tempdir().unwrap();
            let place = directory.path().join(format!("{}.d", &documented[1]));
            fs::create_dir(&place).unwrap();
            let installed = documented[2].replace("/usr/local/bin/", &format!("{}/", file("").display()));
            fs::write(place.join("documented.conf"), installed).unwrap();
            verify_units(directory.path(), &[documented[1].to_owned()]);
            found += 1;
        }
        assert_eq!(page.matches("cat > /etc/systemd/system/").count(), drop_in.captures_iter(&page).count());
    }
    assert!(found >= 7, "{found}");
}

#[test]
fn a_continuous_copy_reports_its_lag_and_when_it_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let mut app = App::start_with(&["--admin-listen", "127.0.0.1:0"]);
    app.add("Rex");
    let key = key_file(directory.path(), &app.log_key());
    let copy = format!("sled:{}", directory.path().join("copy").display());
    let metrics = directory.path().join("petstore-copy.prom");
    let following = Command::new(file("petstore-copy"))
        .args([&format!("http://{}", app.admin()), &copy, "--report-every", "1s"])
        .env("PATH", search_path())
        .env("PETSTORE_API_KEY_FILE", key)
        .env("TEXTFILE_DIRECTORY", directory.path())
        .spawn();
    let mut following = following.unwrap();
    let reported = |name: &str| -> Option<u64> {
        let metrics = fs::read_to_string(&metrics).ok()?;
        metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    wait_until("the copy is complete", || {
        reported("petstore_copy_last_success_timestamp_seconds").is_some_and(|time| time > 1_700_000_000)
    });
    assert_eq!(reported("petstore_copy_lag_commits"), Some(0));
    let written = || fs::metadata(&metrics).unwrap().modified().unwrap();
    app.kill();
    // Several reports later, the time of the last success is still the same.
    wait_until("no more success is reported", || {
        let before = written();
        thread::sleep(Duration::from_secs(3));
        written() == before
    });
    signal(following.id(), "TERM");
    assert_eq!(following.wait().unwrap().code(), Some(0), "the command ends in order");
    assert_eq!(petstore(["log", "find", "--pet", "1", "--store", &copy]).code, Some(0));
}
