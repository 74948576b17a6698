//! The systemd unit, and what the service tells systemd. The messages are read from a real socket; systemd itself runs on
//! few test machines, so the unit is judged by its own tools.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use harness::{App, Running, eventually, petstore, program, root, succeed, wait_until};

fn unit() -> PathBuf {
    root().join("docs/deploy/petstore.service")
}

/// A service and the socket that it sends its messages to.
struct Notifying {
    app: App,
    socket: UnixDatagram,
}

impl Notifying {
    fn start(watchdog: Duration, more: &[&str]) -> Self {
        let mut app = App::stopped_on_engine("sled", &[]);
        let path = app.directory().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let mut variables = vec![
            "env".to_owned(),
            format!("NOTIFY_SOCKET={}", path.display()),
            format!("WATCHDOG_USEC={}", watchdog.as_micros()),
        ];
        variables.extend(more.iter().map(|&variable| variable.to_owned()));
        app.run_by(&variables);
        Self { app, socket }
    }

    fn next_message(&self) -> String {
        let mut message = [0; 64];
        let length = self.socket.recv(&mut message).expect("a message comes");
        String::from_utf8(message[..length].to_vec()).unwrap().trim_end().to_owned()
    }
}

#[test]
fn systemd_hears_that_the_service_is_ready_alive_and_stopping() {
    let mut service = Notifying::start(Duration::from_millis(200), &[]);
    service.app.begin();
    assert_eq!(service.next_message(), "READY=1");
    // A service that is ready responds to requests.
    service.app.wait_until_listening().unwrap();
    assert_eq!(service.app.get("/v1/pets").status, 200);
    assert_eq!(service.next_message(), "WATCHDOG=1");
    assert_eq!(service.next_message(), "WATCHDOG=1");
    service.app.signal("TERM");
    let last =
        eventually("the end is announced", || Some(service.next_message()).filter(|m| m != "WATCHDOG=1"));
    assert_eq!(last, "STOPPING=1");
    assert_eq!(service.app.wait_until_ended().code(), Some(0));
}

#[test]
fn a_watchdog_that_is_meant_for_another_process_is_not_fed() {
    let mut service = Notifying::start(Duration::from_millis(2), &["WATCHDOG_PID=1"]);
    service.app.start_again();
    for _ in 0..20 {
        assert_eq!(service.app.get("/v1/pets").status, 200);
    }
    service.app.terminate();
    assert_eq!((service.next_message(), service.next_message()), ("READY=1".into(), "STOPPING=1".into()));
}

#[test]
fn a_service_that_hangs_does_not_feed_the_watchdog() {
    let mut service = Notifying::start(Duration::from_millis(100), &[]);
    service.app.start_again();
    while service.next_message() != "WATCHDOG=1" {}
    // From now on, a wait for events never ends: the runtime hangs, while its threads are as they were.
    // It continues when the tracer is gone; before that, it could not even be killed.
    let hanging = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=epoll_wait,epoll_pwait"])
        .args(["-e", "inject=epoll_wait,epoll_pwait:delay_enter=600s", "-p", &service.app.pid().to_string()])
        .stdin(Stdio::null())
        .spawn()
        .map(Running)
        .expect("strace runs: tests/run installs it");
    let url = format!("http://{}", service.app.address());
    wait_until("the service hangs", || {
        let output = petstore(["health", url.as_str(), "--probe", "live", "--timeout", "1s"]);
        output.code == Some(3)
    });
    service.socket.set_nonblocking(true).unwrap();
    while service.socket.recv(&mut [0; 64]).is_ok() {}
    service.socket.set_nonblocking(false).unwrap();
    service.socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let fed = service.socket.recv(&mut [0; 64]);
    assert!(fed.is_err(), "not fed in the time of forty messages");
    drop(hanging);
    service.socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    assert_eq!(service.next_message(), "WATCHDOG=1", "fed again when it resumes");
}

#[test]
fn a_missing_service_manager_does_not_stop_the_service() {
    for socket in ["/nowhere/notify", "@petstore-no-listener", ""] {
        let mut app = App::stopped("memory:", &[]);
        app.run_by(&["env".to_owned(), format!("NOTIFY_SOCKET={socket}")]);
        app.start_again();
        app.wait_for_log("NOTIFY_SOCKET");
    }
}

#[test]
fn sighup_reports_a_failed_reload_and_not_success() {
    let app = App::start();
    fs::write(app.keys_file(), "version").unwrap();
    app.signal("HUP");
    let log = app.wait_for_log("SIGHUP: reload failed");
    assert!(!log.contains("SIGHUP: reloaded"), "{log}");
    let failed = log.lines().find(|line| line.contains("SIGHUP")).unwrap();
    assert!(failed.contains("keys.toml cannot be used"), "{failed}");
    assert_eq!(app.get("/v1/pets").status, 200, "the loaded keys stay active");
}

#[test]
fn the_unit_is_valid_and_well_confined() {
    // The program is where the package puts it, and the unit is found by its name.
    let directory = tempfile::tempdir().unwrap();
    let installed =
        fs::read_to_string(unit()).unwrap().replace("/usr/bin/petstore", program().to_str().unwrap());
    let file = directory.path().join("petstore.service");
    fs::write(&file, installed).unwrap();
    succeed(
        Command::new("systemd-analyze").args(["verify", "--man=no", "--recursive-errors=yes"]).arg(&file),
    );
    // 15 stands for an exposure of 1.5, on a scale that ends at 10.
    succeed(
        Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true", "--threshold=15"])
            .arg(unit()),
    );
}

#[test]
fn a_service_on_its_own_disk_connects_to_no_host_and_makes_no_forbidden_system_call() {
    let unit = fs::read_to_string(unit()).unwrap();
    let (mut allowed, mut forbidden) = (BTreeSet::new(), BTreeSet::new());
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (set, names) = match line.strip_prefix('~') {
            Some(names) => (&mut forbidden, names),
            None => (&mut allowed, line),
        };
        names.split_whitespace().for_each(|name| expand(name, set));
    }
    assert!(allowed.contains("fdatasync") && forbidden.contains("setuid"), "the sets are known");

    let trace = trace_of_a_service();
    let used: BTreeSet<_> = trace.lines().filter_map(system_call).collect();
    assert!(used.contains("fdatasync") && used.contains("accept4"), "{used:?}");
    assert!(!used.contains("connect"), "{used:?}");
    let denied = |call: &&&str| !allowed.contains(**call) || forbidden.contains(**call);
    let denied: Vec<_> = used.iter().filter(denied).collect();
    assert!(denied.is_empty(), "{denied:?}");
}

/// Every system call of a service from its start to its end, with a pet in between whose name is an address.
fn trace_of_a_service() -> String {
    let mut app = App::stopped_on_engine("sled", &[]);
    let trace = app.directory().join("trace");
    let strace = ["strace", "-D", "-f", "-qq", "-o", trace.to_str().unwrap()];
    app.run_by(&strace.map(str::to_owned));
    app.start_again();
    assert_eq!(app.post(r#"{"name":"http://127.0.0.1:1/","categoryId":7}"#).status, 201);
    assert_eq!(app.get("/v1/pets").status, 200);
    app.signal("HUP");
    app.terminate();
    eventually("the trace is complete", || {
        fs::read_to_string(&trace).ok().filter(|trace| trace.contains("exit_group(0"))
    })
}

/// Adds a system call, or all those in a named set.
fn expand(name: &str, calls: &mut BTreeSet<String>) {
    if !name.starts_with('@') {
        calls.insert(name.to_owned());
        return;
    }
    let set = succeed(Command::new("systemd-analyze").args(["syscall-filter", "--no-pager", name]));
    for member in set.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        expand(member, calls);
    }
}

/// The name of the call in a line of a trace: `PID name(…`.
fn system_call(line: &str) -> Option<&str> {
    let (name, _) = line.split_once(' ')?.1.trim_start().split_once('(')?;
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(name)
}
