//! A service whose output is not read: requests, probes and signals never wait for the reader.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, PipeReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{ChildStderr, Command, Stdio},
    thread,
    time::Duration,
};

use harness::{Call, REX, Running, eventually, petstore, program, signal, wait_until};
use tempfile::TempDir;

/// More requests than a pipe and the queue for the log can hold lines.
const REQUESTS: usize = 8_000;

/// What a pipe holds before its writer has to wait.
const PIPE_SIZE: usize = 64 * 1024;

/// How long the service may take to respond on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A service with `--log debug`. Its standard error is a pipe that this test holds, and reads when it likes.
struct Service {
    process: Running,
    stderr: Option<ChildStderr>,
    directory: TempDir,
    key: String,
}

impl Service {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let keys = directory.path().join("keys.toml");
        let issued = petstore(["keys", "issue", "--name", "test", "--keys", keys.to_str().unwrap()]);
        let mut process = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--store", "memory:"])
            .args(["--log", "debug", "--access-log", "--drain", "50s", "--keys"])
            .arg(&keys)
            .stdin(Stdio::null())
            .stdout(File::create(directory.path().join("stdout")).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = process.stderr.take();
        let service =
            Self { process: Running(process), stderr, directory, key: issued.stdout.trim().to_owned() };
        wait_until("the service is ready", || service.printed().contains("ready:"));
        service
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.directory.path().join("stdout")).unwrap()
    }

    fn address_after(&self, words: &str) -> SocketAddr {
        let printed = self.printed();
        let url = printed.split(words).nth(1).unwrap().split("http://").nth(1).unwrap();
        url.split_ascii_whitespace().next().unwrap().parse().unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.address_after("is starting on")
    }

    fn admin(&self) -> SocketAddr {
        self.address_after("probes, metrics and the log on")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends so many requests that their log lines fill the pipe and the queue. All of them get a response.
    fn fill_the_log(&self) {
        let mut stream = self.connect();
        let mut sending = stream.try_clone().unwrap();
        let sender = thread::spawn(move || {
            for number in 1..=REQUESTS {
                let close = if number == REQUESTS { "connection: close\r\n" } else { "" };
                write!(sending, "GET /livez HTTP/1.1\r\nhost: a\r\n{close}\r\n").unwrap();
            }
        });
        let mut responses = String::new();
        stream.read_to_string(&mut responses).unwrap();
        sender.join().unwrap();
        assert_eq!(responses.matches("HTTP/1.1 200 OK").count(), REQUESTS);
    }

    fn dropped_lines(&self) -> u64 {
        let metrics = Call::new(self.admin(), "GET", "/metrics").send();
        let line =
            metrics.text().lines().find_map(|line| line.strip_prefix("petstore_log_lines_dropped_total "));
        line.expect("the metric is there").parse().unwrap()
    }
}

fn exit_code(process: &mut Running) -> Option<i32> {
    eventually("the service ends", || process.0.try_wait().unwrap()).code()
}

#[test]
fn requests_probes_and_shutdown_do_not_wait_for_a_stalled_reader_of_the_log() {
    let mut service = Service::start();
    service.fill_the_log();
    for (listener, path) in
        [(service.address(), "/livez"), (service.address(), "/readyz"), (service.admin(), "/readyz")]
    {
        assert_eq!(Call::new(listener, "GET", path).send().status, 200, "{path}");
    }
    let create = Call::new(service.address(), "POST", "/v1/pets");
    let create = create.key(&service.key);
    assert_eq!(create.json(REX).send().status, 201);
    assert!(service.dropped_lines() > 0, "what does not fit is dropped and counted");
    signal(service.process.0.id(), "TERM");
    assert_eq!(exit_code(&mut service.process), Some(0));
}

#[test]
fn a_second_signal_does_not_wait_for_a_stalled_reader_of_the_log() {
    let mut service = Service::start();
    service.fill_the_log();
    // A body that does not come keeps the service from ending.
    let mut held = service.connect();
    let request =
        "POST /v1/pets HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 9\r\n";
    let request = format!("{request}expect: 100-continue\r\nauthorization: Bearer {}\r\n\r\n", service.key);
    held.write_all(request.as_bytes()).unwrap();
    let mut asked_for_the_body = [0; 12];
    held.read_exact(&mut asked_for_the_body).unwrap();
    assert_eq!(&asked_for_the_body, b"HTTP/1.1 100");
    signal(service.process.0.id(), "TERM");
    let admin = service.admin();
    wait_until("the service leaves", || {
        let probe = Call::new(admin, "GET", "/readyz").try_send();
        probe.is_none_or(|response| response.status == 503)
    });
    signal(service.process.0.id(), "INT");
    assert_eq!(exit_code(&mut service.process), Some(1));
}

#[test]
fn the_log_says_how_many_lines_a_stalled_reader_missed() {
    let mut service = Service::start();
    service.fill_the_log();
    assert!(service.dropped_lines() > 0);
    let lines = BufReader::new(service.stderr.take().unwrap()).lines();
    let output = lines.map(Result::unwrap).find(|line| line.contains("log lines dropped"));
    assert!(output.is_some_and(|line| line.contains("WARN")));
}

/// Starts a service that cannot print a single byte, and returns the pipe that it waits for.
fn start_mute(arguments: &[&str]) -> (Running, PipeReader) {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(&vec![b'\n'; PIPE_SIZE]).unwrap();
    let process = Command::new(program())
        .arg("serve")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    (Running(process), reader)
}

#[test]
fn a_service_starts_and_stops_while_its_output_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys.toml");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let (mut process, _unread) =
        start_mute(&["--listen", &free.to_string(), "--store", "memory:", "--keys", keys.to_str().unwrap()]);
    wait_until("the service is ready", || {
        let probe = Call::new(free, "GET", "/readyz").try_send();
        probe.is_some_and(|response| response.status == 200)
    });
    signal(process.0.id(), "TERM");
    assert_eq!(exit_code(&mut process), Some(0));
}

#[test]
fn a_failing_service_exits_even_if_its_output_is_not_read() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys.toml");
    let (mut process, _unread) =
        start_mute(&["--listen", &address, "--store", "memory:", "--keys", keys.to_str().unwrap()]);
    assert_eq!(exit_code(&mut process), Some(1));
}
