//! Several nodes behind nginx: they are restarted one after the other, and no request is lost.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

use harness::{App, Call, PostgresServer, eventually, free_port, signal, succeed, wait_until};
use tempfile::TempDir;

use super::{
    deployment::{Nginx, file, nginx_with, search_path},
    tls::start_secure,
};

/// How many clients send requests.
const CLIENTS: usize = 4;

/// A node on its own port, with the keys of the first one.
pub(super) fn node(store: &str, port: u16, keys_of: Option<&App>) -> App {
    let flags = ["--listen-when-ready", "--drain", "30s"];
    let mut app = App::stopped(store, &flags);
    if let Some(first) = keys_of {
        fs::copy(first.keys_file(), app.keys_file()).unwrap();
        app.key.clone_from(&first.key);
    }
    app.use_port(port);
    app.start_again();
    app
}

#[test]
fn nodes_behind_nginx_are_restarted_without_losing_a_request() {
    let mut postgres = PostgresServer::start();
    let database = postgres.create_database();
    let store = postgres.url(&database);
    let ports = [free_port(), free_port()];
    let first = node(&store, ports[0], None);
    let second = node(&store, ports[1], Some(&first));
    let (key, nodes) = (first.key.clone(), std::sync::Mutex::new([first, second]));

    let http = free_port();
    // The clients of this test speak plain HTTP.
    let plain = "location / { proxy_pass http://petstore; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_next_upstream error timeout http_503; }";
    let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
    let cluster = Cluster::of(addresses, " max_fails=3 fail_timeout=3s", http, &[("return 403;", plain)]);
    let address = ([127, 0, 0, 1], http).into();
    let call = |method: &str| Call::new(address, method, "/v1/pets").key(&key);
    eventually("nginx responds", || (call("GET").try_send()?.status == 200).then_some(()));

    // What restarts a node: it asks the test, which has started it.
    let asked = cluster.path("asked");
    let script = "echo $1 >ASKED.new && mv ASKED.new ASKED\nwhile [ -e ASKED ]; do sleep 0.1; done";
    let mut restart = cluster.restart(&script.replace("ASKED", &asked));
    let (done, created, read) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (done, created, read, call) = (&done, &created, &read, &call);
            scope.spawn(move || {
                for count in 0.. {
                    if done.load(Relaxed) {
                        return;
                    }
                    let body = format!(r#"{{"name":"{client}-{count}","categoryId":7}}"#);
                    let posted = call("POST").json(body).send();
                    assert_eq!(posted.status, 201, "{}", posted.text());
                    created.fetch_add(1, Relaxed);
                    assert_eq!(call("GET").send().status, 200);
                    read.fetch_add(1, Relaxed);
                }
            });
        }
        scope.spawn(|| {
            for _ in ports {
                let node = eventually("a node is to be restarted", || fs::read_to_string(&asked).ok());
                let mut nodes = nodes.lock().unwrap();
                let node = nodes.iter_mut().find(|app| app.address().to_string() == node.trim()).unwrap();
                assert!(node.terminate().success());
                node.start_again();
                fs::remove_file(&asked).unwrap();
            }
        });
        wait_until("some requests are under way", || created.load(Relaxed) > 20);
        let output = succeed(restart.env_remove("TIMEOUT"));
        done.store(true, Relaxed);
        assert_eq!(output.matches("restarted").count(), 2, "{output}");
    });
    let (created, read) = (created.into_inner(), read.into_inner());
    println!("two nodes restarted: {created} creates and {read} reads, none lost");
    assert_eq!(cluster.nodes(), cluster.listed);
    let nodes = nodes.into_inner().unwrap();
    // The last creates may have gone to the other node.
    let pets =
        eventually("a node has every pet", || Some(nodes[0].all_pets()).filter(|pets| pets.len() >= created));
    let mut names: Vec<_> = pets.iter().map(|pet| pet["name"].clone().to_string()).collect();
    assert_eq!(names.len(), created, "each create was carried out once");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), created);
}

/// nginx in front of nodes, with the file that names them.
struct Cluster {
    directory: TempDir,
    listed: String,
    _nginx: Nginx,
}

impl Cluster {
    /// nginx with these changes of its configuration, and with these parameters of every node.
    fn of(nodes: [String; 2], parameters: &str, http: u16, changes: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listed = nodes.map(|node| format!("\tserver\t{node}{parameters};\n")).concat();
        let file = directory.path().join("nodes.conf");
        fs::write(&file, &listed).unwrap();
        let include = format!("include {};", file.display());
        let change = ("server 127.0.0.1:8080 max_fails=3 fail_timeout=3s;", include.as_str());
        let nginx = nginx_with(directory.path(), free_port(), http, &[&[change], changes].concat());
        let cluster = Self { directory, listed, _nginx: nginx };
        eventually("nginx runs", || {
            fs::read_to_string(cluster.path("pid")).ok().filter(|pid| !pid.is_empty())
        });
        cluster
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn nodes(&self) -> String {
        fs::read_to_string(self.path("nodes.conf")).unwrap()
    }

    /// A rolling restart in which this shell script restarts a node.
    fn restart(&self, script: &str) -> Command {
        let command = self.path("restart");
        fs::write(&command, format!("#!/bin/sh\n{script}\n")).unwrap();
        succeed(Command::new("chmod").args(["+x", &command]));
        let mut restart = Command::new(file("rolling-restart"));
        restart
            .args([&self.path("nodes.conf"), &command])
            .env("PATH", search_path())
            .env("NGINX_COMMAND", format!("nginx -c {0}/nginx.conf -e {0}/errors", self.path("")))
            .env("NGINX_PID", self.path("pid"))
            .env("TIMEOUT", "5");
        restart
    }

    fn assert_fails(&self, restart: &mut Command, reason: &str) {
        let output = restart.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(reason), "{error}");
        assert_eq!(self.nodes(), self.listed);
    }
}

#[test]
fn a_rolling_restart_that_does_not_finish_puts_its_node_back() {
    let (first, second) = (App::start(), App::start());
    let cluster = Cluster::of([&first, &second].map(|app| app.address().to_string()), "", free_port(), &[]);
    cluster.assert_fails(&mut cluster.restart("exit 7"), "exited with status 7");
    cluster.assert_fails(&mut cluster.restart("exec sleep 60"), "did not finish within 5 s");
    let stop_first = format!("kill -s STOP {}", first.pid());
    cluster.assert_fails(&mut cluster.restart(&stop_first), "is not ready after 5 s");
    first.signal("CONT");
    // Without the first node, nginx would have none.
    second.signal("STOP");
    cluster.assert_fails(&mut cluster.restart("true"), "is not ready, so");
    second.signal("CONT");

    // Interrupted by a signal, then killed: the next run puts the node back.
    let hangs = cluster.path("hangs");
    for name in ["TERM", "KILL"] {
        let script = format!("touch {hangs}; while [ -e {hangs} ]; do sleep 0.1; done");
        let mut interrupted = cluster.restart(&script).spawn().unwrap();
        wait_until("a node is being restarted", || fs::exists(&hangs).unwrap());
        assert!(cluster.nodes().contains(" down;"), "{}", cluster.nodes());
        signal(interrupted.id(), name);
        assert!(!interrupted.wait().unwrap().success(), "although the command still runs");
        fs::remove_file(&hangs).unwrap();
        assert_eq!(cluster.nodes() == cluster.listed, name == "TERM", "{}", cluster.nodes());
    }
    let output = succeed(&mut cluster.restart("true"));
    assert!(output.contains("an earlier run was killed"), "{output}");
    assert_eq!((output.matches("restarted").count(), cluster.nodes()), (2, cluster.listed.clone()));
}

#[test]
fn a_rolling_restart_checks_nodes_over_https() {
    let first = start_secure(&[]);
    let path = |name: &str| first.directory().join(name).to_str().unwrap().to_owned();
    let flags = ["--tls-cert", &path("server.pem"), "--tls-key", &path("server.key")];
    let mut second = App::stopped("memory:", &flags);
    second.begin();
    second.wait_until_listening().unwrap();
    let cluster = Cluster::of([&first, &second].map(|app| app.address().to_string()), "", free_port(), &[]);
    cluster.assert_fails(&mut cluster.restart("true"), "is not ready");
    let output =
        succeed(cluster.restart("true").env("NODE_SCHEME", "https").env("PETSTORE_CA", path("ca.pem")));
    assert_eq!(output.matches("restarted").count(), 2, "{output}");
}

#[test]
fn a_node_that_listens_when_it_is_ready_rejects_connections_until_then() {
    let postgres = PostgresServer::start();
    let (port, admin) = (free_port(), free_port());
    let mut postgres = postgres;
    let database = postgres.create_database();
    let flags = ["--listen-when-ready", "--admin-listen", &format!("127.0.0.1:{admin}")];
    let mut app = App::stopped(&postgres.url(&database), &flags);
    app.use_port(port);
    postgres.kill();
    app.begin();
    let probe = |port: u16, path: &str| Call::new(([127, 0, 0, 1], port).into(), "GET", path).try_send();
    let starting =
        eventually("the admin listener reports that the service is starting", || probe(admin, "/readyz"));
    assert!(starting.status == 503 && starting.text().contains("starting"), "{}", starting.text());
    assert!(probe(port, "/livez").is_none(), "the port is still closed");
    postgres.start_again();
    eventually("it listens", || probe(port, "/readyz"));
    assert_eq!(probe(port, "/readyz").unwrap().status, 200, "from its first response on");
    app.wait_until_listening().unwrap();
    assert_eq!(app.address().port(), port);
}
