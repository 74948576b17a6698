//! The files in docs/deploy do what docs/deploy.md says: each is run, or judged by the tool that reads it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use harness::{App, eventually, free_port, key_file, not_run, petstore, program, python_tool, root, succeed};
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
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        self.0.wait().unwrap();
    }
}

/// Starts nginx with the documented configuration, on other ports and with other paths, and with these parts replaced.
pub(crate) fn nginx_with(folder: &Path, https: u16, http: u16, changes: &[(&str, &str)]) -> Nginx {
    let certified = rcgen::generate_simple_self_signed(["pets.example.com".to_owned()]).unwrap();
    fs::write(folder.join("fullchain.pem"), certified.cert.pem()).unwrap();
    fs::write(folder.join("privkey.pem"), certified.signing_key.serialize_pem()).unwrap();
    let place = folder.to_str().unwrap();
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
    let path = folder.join("nginx.conf");
    fs::write(&path, configuration).unwrap();
    let nginx = || {
        let mut nginx = Command::new("nginx");
        nginx.arg("-c").arg(&path).arg("-e").arg(folder.join("errors"));
        nginx
    };
    succeed(nginx().arg("-t"));
    Nginx(nginx().args(["-g", "daemon off;"]).spawn().unwrap())
}

#[test]
fn nginx_terminates_tls_in_front_of_the_service() {
    let app = App::start();
    let folder = tempfile::tempdir().unwrap();
    let (https, http) = (free_port(), free_port());
    let _nginx = nginx_with(folder.path(), https, http, &[("127.0.0.1:8080", &app.address().to_string())]);
    let curl = |url: &str, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--http2", "--write-out", "\n%{http_code} %{http_version}"])
            .args(["--resolve", &format!("pets.example.com:{https}:127.0.0.1")])
            .arg("--cacert")
            .arg(folder.path().join("fullchain.pem"))
            .args(["--header", &format!("Authorization: Bearer {}", app.key)])
            .args(more)
            .arg(url);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let pets = format!("https://pets.example.com:{https}/v1/pets");
    eventually("nginx answers", || curl(&pets, &[]).ends_with("\n200 2").then_some(()));
    let created = curl(&pets, &["--json", r#"{"name":"Rex","categoryId":7}"#]);
    assert!(created.ends_with("\n201 2"), "{created}");
    assert!(curl(&pets, &["--http1.1"]).contains("Rex"));
    // The limit of the proxy is that of the service.
    let large = |length: usize| format!(r#"{{"name":"{}","categoryId":7}}"#, "a".repeat(length));
    assert!(curl(&pets, &["--json", &large(60_000)]).ends_with("\n400 2"));
    assert!(curl(&pets, &["--json", &large(70_000)]).ends_with("\n413 2"));
    let plain = curl(&format!("http://127.0.0.1:{http}/v1/pets"), &[]);
    assert!(plain.ends_with("\n403 1.1"), "{plain}");
    let logged = fs::read_to_string(folder.path().join("petstore.log")).unwrap();
    assert!(logged.contains("GET /v1/pets") && !logged.contains(&app.key), "{logged}");
}

#[test]
fn the_container_image_is_sound_and_runs_without_root() {
    succeed(python_tool("hadolint").arg(file("Dockerfile")));
    let folder = tempfile::tempdir().unwrap();
    let context = folder.path().join("image");
    succeed(Command::new(file("collect-image")).arg(&context).arg(program()));
    if !geteuid().is_root() {
        return not_run("deployment::the_container_image", "a root folder of its own needs root");
    }
    succeed(Command::new(root().join("tests/deploy/run-image")).arg(&context));
}

#[test]
fn prometheus_and_kubernetes_accept_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let config = text("prometheus.yml").replace("/etc/prometheus", folder.path().to_str().unwrap());
    fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    fs::write(folder.path().join("petstore-metrics-key"), "key").unwrap();
    fs::copy(root().join("docs/monitoring/alerts.yml"), folder.path().join("alerts.yml")).unwrap();
    succeed(Command::new("promtool").args(["check", "config"]).arg(folder.path().join("prometheus.yml")));
    let judged = succeed(python_tool("kubernetes-validate").arg("--strict").arg(file("kubernetes.yaml")));
    assert!(!judged.contains("ERROR"), "{judged}");
}

#[test]
fn every_variable_in_the_files_is_a_setting_of_the_service() {
    let help = petstore(["serve", "--help"]).stdout + &petstore(["log", "export", "--help"]).stdout;
    let mut found = 0;
    for name in
        ["Dockerfile", "kubernetes.yaml", "petstore.service", "petstore-backup.service", "debian/default"]
    {
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

#[test]
fn a_backup_is_verified_and_old_ones_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", folder.path().join("log").display());
    let operators = ["--ops-listen", "127.0.0.1:0"];
    let app = App::start_on(program(), &store, tempfile::tempdir().unwrap(), &operators);
    app.add("Rex");
    let backups = folder.path().join("backups");
    fs::create_dir(&backups).unwrap();
    for day in 10..26 {
        for kind in ["jsonl", "keys.toml"] {
            fs::write(backups.join(format!("202501{day}T000000Z.{kind}")), "").unwrap();
        }
    }
    let path = format!("{}:{}", program().parent().unwrap().display(), env::var("PATH").unwrap());
    let backup = || {
        let mut backup = Command::new(file("petstore-backup"));
        backup
            .arg(&backups)
            .env("PATH", &path)
            .env("PETSTORE_STORE", &store)
            .env("PETSTORE_KEYS", app.keys_file());
        backup
    };
    let names = |kind: &str| {
        let names =
            fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(kind) && !name.starts_with('.')).collect();
        names.sort();
        names
    };
    let rejected = backup().output().unwrap();
    assert!(!rejected.status.success(), "the store is in use: {rejected:?}");
    assert_eq!(names("jsonl").len(), 16, "a backup that failed is not there, and removes nothing");
    let key = key_file(folder.path(), &app.issue_key(&["--name", "backup", "--scope", "log"]));
    let url = format!("http://{}", app.operators());
    eventually("the running service is backed up, once the key is active", || {
        let online = backup().arg(&url).env("PETSTORE_KEY_FILE", &key).output().unwrap();
        online.status.success().then_some(())
    });
    assert_eq!(names("jsonl").len(), 14);
    app.signal("TERM");

    eventually("the service is gone", || backup().output().unwrap().status.success().then_some(()));
    assert_eq!((names("jsonl").len(), names("keys.toml").len()), (14, 14));
    let newest = backups.join(names("jsonl").pop().unwrap());
    let restored = format!("sled:{}", folder.path().join("restored").display());
    let imported = petstore(["log", "import", newest.to_str().unwrap(), "--store", &restored]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(petstore(["log", "find", "--pet", "1", "--store", &restored]).code, Some(0));
    let keys = backups.join(names("keys.toml").pop().unwrap());
    assert_eq!(fs::read(keys).unwrap(), fs::read(app.keys_file()).unwrap());
}

#[test]
fn the_units_of_the_backup_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["petstore-backup.service", "petstore-backup.timer"] {
        // The script is where the unit expects it.
        let unit =
            text(name).replace("/usr/local/bin/petstore-backup", file("petstore-backup").to_str().unwrap());
        fs::write(folder.path().join(name), unit).unwrap();
    }
    let timer = folder.path().join("petstore-backup.timer");
    succeed(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(timer));
}
