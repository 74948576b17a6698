//! A service whose output is not read: requests, probes and signals never wait for the reader.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, PipeReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use harness::{App, Call, REX, Running, eventually, free_port, program, signal, succeed, wait_until};
use tempfile::TempDir;

/// More requests than a pipe and the queue for the log can hold lines.
const REQUESTS: usize = 8_000;

/// What a pipe holds before its writer has to wait.
const PIPE_SIZE: usize = 64 * 1024;

/// How long the service may take to respond on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A service whose standard error is a pipe, and the end of the pipe that this test reads when it likes. The pipe and the
/// queue are full.
fn start_with_full_log() -> (App, File) {
    let flags = ["--admin-listen", "127.0.0.1:0", "--log-level", "debug", "--access-log", "--drain", "50s"];
    let mut app = App::stopped("memory:", &flags);
    let pipe = app.directory().join("pipe");
    succeed(Command::new("mkfifo").arg(&pipe));
    // Opened for both, so that neither end waits for the other.
    let log = File::options().read(true).write(true).open(&pipe).unwrap();
    app.run_by(&["sh", "-c", r#"exec "$@" 2>"$0""#, pipe.to_str().unwrap()].map(str::to_owned));
    app.start_again();
    fill_the_log(&app);
    assert!(app.metric("petstore_log_lines_dropped_total") > 0.0, "what does not fit is dropped and counted");
    (app, log)
}

fn connect(app: &App) -> TcpStream {
    let stream = TcpStream::connect(app.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends so many requests that their log lines fill the pipe and the queue. All of them get a response.
fn fill_the_log(app: &App) {
    let mut stream = connect(app);
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

#[test]
fn requests_probes_and_shutdown_do_not_wait_for_a_stalled_reader_of_the_log() {
    let (mut app, _unread) = start_with_full_log();
    for (listener, path) in [(app.address(), "/livez"), (app.address(), "/readyz"), (app.admin(), "/readyz")]
    {
        assert_eq!(Call::new(listener, "GET", path).send().status, 200, "{path}");
    }
    assert_eq!(app.post(REX).status, 201);
    assert_eq!(app.terminate().code(), Some(0));
}

#[test]
fn the_log_says_how_many_lines_a_stalled_reader_missed() {
    let (_app, log) = start_with_full_log();
    let output = BufReader::new(log)
        .lines()
        .map(Result::unwrap)
        .find(|line| line.contains("lines of the service log dropped"));
    assert!(output.is_some_and(|line| line.contains("WARN")));
}

/// Starts a service that cannot print a single byte, and returns the pipe that it waits for.
fn start_mute(listen: SocketAddr, directory: &TempDir) -> (Running, PipeReader) {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(&vec![b'\n'; PIPE_SIZE]).unwrap();
    let process = Command::new(program())
        .args(["serve", "--store", "memory:", "--listen", &listen.to_string(), "--keys"])
        .arg(directory.path().join("keys.toml"))
        .stdin(Stdio::null())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    (Running(process), reader)
}

fn exit_code(process: &mut Running) -> Option<i32> {
    eventually("the service ends", || process.0.try_wait().unwrap()).code()
}

#[test]
fn a_service_starts_and_stops_while_its_output_is_not_read() {
    let free = ([127, 0, 0, 1], free_port()).into();
    let directory = TempDir::new().unwrap();
    let (mut process, _unread) = start_mute(free, &directory);
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
    let directory = TempDir::new().unwrap();
    let (mut process, _unread) = start_mute(taken.local_addr().unwrap(), &directory);
    assert_eq!(exit_code(&mut process), Some(1));
}
