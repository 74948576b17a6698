//! `petstore health`: the exit code tells a script whether the service is healthy, unhealthy or gone.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    process::Command,
    thread,
};

use harness::{App, Finished, REX, eventually, finished, petstore, program, wait_until};

fn health(address: impl std::fmt::Display, arguments: &[&str]) -> Finished {
    let url = format!("http://{address}");
    petstore(["health", url.as_str()].iter().chain(arguments))
}

#[test]
fn reads_and_writes_have_probes_of_their_own() {
    let app = App::on_engine("sled", &["--admin-listen", "127.0.0.1:0", "--drain-delay", "1h"]);
    let store = app.directory().join("log");
    let codes = |address: SocketAddr| {
        ["ready", "reads", "writes"].map(|probe| health(address, &["--probe", probe]).code.unwrap())
    };
    let listeners = [app.address(), app.admin()];
    assert_eq!(listeners.map(codes), [[0, 0, 0]; 2]);
    // Nothing can be written any more, and everything can be read.
    fs::rename(&store, store.with_extension("moved")).unwrap();
    let rejected = app.post(REX);
    rejected.error(503, "unavailable");
    for response in [rejected, app.probe("/readyz")] {
        assert_eq!(response.header("retry-after"), Some("5"), "nothing changes in a second");
    }
    assert_eq!(listeners.map(codes), [[1, 0, 1]; 2]);
    let output = health(app.address(), &["--probe", "writes"]);
    assert!(output.stdout.contains("were deleted, moved or replaced"), "{output:?}");
    app.signal("TERM");
    wait_until("the service drains", || listeners.map(codes) == [[1, 1, 1]; 2]);
}

#[test]
fn the_exit_code_follows_the_service_from_ready_to_draining_to_gone() {
    let mut app = App::start_with(&["--admin-listen", "127.0.0.1:0", "--drain-delay", "1h"]);
    let (public, admin) = (app.address(), app.admin());
    for address in [public, admin] {
        for (probe, word) in [("ready", "ready"), ("live", "alive")] {
            health(address, &["--probe", probe]).exits_with(0).prints(&format!("\"status\":\"{word}\""));
        }
    }
    app.signal("TERM");
    let draining = eventually("the service drains", || {
        Some(health(public, &[])).filter(|output| output.code != Some(0))
    })
    .exits_with(1);
    assert!(draining.stdout.contains("draining"), "{draining:?}");
    health(admin, &["--probe", "live"]).exits_with(0);
    app.kill();
    let gone = health(public, &[]).exits_with(3);
    assert!(gone.stderr.contains("cannot connect") && gone.stdout.is_empty(), "{gone:?}");
}

#[test]
fn the_report_is_readable_on_a_terminal_and_json_elsewhere() {
    let app = App::on("memory:");
    let run = |variable: &str, flag: &str| {
        let command = format!("{variable} {} health http://{} {flag}", program().display(), app.address());
        finished(Command::new("script").args(["-qec", &command, "/dev/null"])).exits_with(0).stdout
    };
    assert!(run("", "").contains("\u{1b}[32mready\u{1b}[0m"), "green");
    let lines = run("NO_COLOR=1", "");
    let value = |name: &str| lines.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    assert_eq!((value("status "), value("engine ")), (Some("ready"), Some("memory")), "{lines}");
    assert!(value("durability ").is_some_and(|promise| !promise.contains('{')), "{lines}");
    let json = health(app.address(), &[]).stdout;
    assert!(json.starts_with("{\"status\":\"ready\""), "{json}");
    assert_eq!(run("", "--json").trim_end(), json.trim_end());
}

#[test]
fn a_response_of_another_service_is_not_a_report() {
    for response in [
        "HTTP/1.1 200 OK\r\n\r\n<h1>Welcome</h1>\x1b[31m",
        "HTTP/1.1 404 Not Found\r\n\r\n{\"status\":\"ready\"}",
        "HTTP/1.1 200 OK\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let request = stream.read(&mut [0; 1024]).unwrap();
            assert!(request > 0, "a request comes before the response");
            stream.write_all(response.as_bytes()).unwrap();
        });
        let output = health(address, &[]);
        server.join().unwrap();
        assert_eq!(output.code, Some(3), "{response:?}: {output:?}");
        assert!(!output.stderr.contains('\x1b') && output.stdout.is_empty(), "{output:?}");
    }
}
