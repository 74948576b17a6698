//! Servers that break the protocol of `/log`: every command that reads from one ends with one sentence, in bounded time
//! and memory.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{Running, eventually, program};
use tempfile::TempDir;

/// The most memory that a command may use.
const MEMORY_MAX_KIB: u64 = 64 * 1024;
/// No server sends for longer, so that a command that does not end fails the test.
const SERVER_TIMEOUT: Duration = Duration::from_mins(3);
/// No sentence is longer, in bytes.
const SENTENCE_MAX: usize = 300;
const DRIBBLE_INTERVAL: Duration = Duration::from_millis(200);
/// A flood sends this much at a time, more within seconds than a command may hold. Many floods at once leave time for others.
const FLOOD_BYTES: usize = 64 * 1024;
const FLOOD_INTERVAL: Duration = Duration::from_millis(5);

/// A server that responds to every GET with `first`, and then with `rest` again and again.
#[derive(Clone, Copy)]
struct Source {
    first: &'static str,
    rest: &'static str,
    /// How many bytes of it are sent at a time, at least, and the delay before each time.
    bytes: usize,
    delay: Duration,
    /// Words of the error.
    says: &'static str,
}

const fn flood(first: &'static str, rest: &'static str, says: &'static str) -> Source {
    Source { first, rest, bytes: FLOOD_BYTES, delay: FLOOD_INTERVAL, says }
}

const fn dribble(first: &'static str, rest: &'static str, says: &'static str) -> Source {
    Source { first, rest, bytes: 1, delay: DRIBBLE_INTERVAL, says }
}

const OK: &str = "HTTP/1.1 200 OK\r\nLog-Position: 2\r\n\r\n";

/// Sources that no running service resembles, so that a retry does not help.
const VIOLATIONS: [Source; 5] = [
    flood(OK, "\n", "the response has too many blank lines after position 0"),
    flood(OK, "x", "the response has a line that is longer than any record after position 0"),
    flood("HTTP/1.1 200 OK\r\n", "X-Endless: yes\r\n", "the response headers are too large"),
    flood("HTTP/1.1 200 OK\r\nX-Endless: ", "x", "the response headers are too large"),
    flood(
        "HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example\r\n\r\n",
        "x",
        "the response is a redirect, which is not followed",
    ),
];

/// Sources that may be a service under load or behind a bad network.
const OUTAGES: [Source; 5] = [
    flood("", "HTTP/1.1 100 Continue\r\n\r\n", "no response within 10s"),
    flood("HTTP/1.1 500 Oops\r\n\r\n", "x", "responded with 500: the service is not ready"),
    dribble("HTTP/1.1 500 Oops\r\n\r\n", "x", "responded with 500: the service is not ready"),
    dribble(OK, "x", "no complete line within 30s"),
    flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0", "no complete line within 30s"),
];

impl Source {
    fn start(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Ends with the test.
        thread::spawn(move || {
            for stream in listener.incoming() {
                thread::spawn(move || self.respond(stream.unwrap()));
            }
        });
        address
    }

    fn respond(self, stream: TcpStream) {
        stream.set_write_timeout(Some(SERVER_TIMEOUT)).unwrap();
        let mut stream = BufReader::new(stream);
        let (mut request, mut line) = (String::new(), String::new());
        stream.read_line(&mut request).unwrap();
        while stream.read_line(&mut line).unwrap() > 2 {}
        let mut stream = stream.into_inner();
        if request.starts_with("HEAD") {
            return stream.write_all(OK.as_bytes()).unwrap();
        }
        let rest = self.rest.repeat(self.bytes.div_ceil(self.rest.len()));
        let mut sent = stream.write_all(self.first.as_bytes());
        let begun = Instant::now();
        while sent.is_ok() && begun.elapsed() < SERVER_TIMEOUT {
            thread::sleep(self.delay);
            sent = stream.write_all(rest.as_bytes());
        }
    }

    /// Starts a command on this source, with a directory for its copy.
    fn run(self, command: &[&str], directory: &TempDir) -> Running {
        let url = format!("http://{}", self.start());
        let copy = format!("sqlite:{}", directory.path().join("copy").display());
        let arguments = command.iter().map(|word| word.replace("URL", &url).replace("COPY", &copy));
        let mut petstore = Command::new(program());
        petstore.args(arguments).env("PETSTORE_API_KEY", "key").stdin(Stdio::null());
        Running(petstore.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Checks that a command ends with this code and one sentence, and has not used more memory than allowed.
    fn ends(self, command: &[&str], code: i32) {
        let directory = tempfile::tempdir().unwrap();
        let mut running = self.run(command, &directory);
        let mut peak_kib = 0;
        let status = eventually(&format!("{command:?} ends: {}", self.says), || {
            peak_kib = peak_memory_kib(running.0.id()).unwrap_or(peak_kib);
            running.0.try_wait().unwrap()
        });
        let mut stderr = String::new();
        running.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(status.code(), Some(code), "{command:?}: {stderr}");
        assert_eq!(stderr.matches(self.says).count(), 1, "{command:?}, {}: {stderr}", self.says);
        let is_one_sentence =
            stderr.lines().count() == 1 && stderr.len() < SENTENCE_MAX && !stderr.contains("elsewhere");
        assert!(is_one_sentence, "{command:?}: {stderr:?}");
        assert!(peak_kib < MEMORY_MAX_KIB, "{command:?} used {peak_kib} KiB: {stderr}");
    }
}

/// The most memory that a process has used so far. `None` after its end.
fn peak_memory_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}

const EXPORT: &[&str] = &["log", "export", "--store", "URL"];
const COPY: &[&str] = &["log", "copy", "--from", "URL", "--to", "COPY"];
const FOLLOW: &[&str] = &["log", "copy", "--from", "URL", "--to", "COPY", "--follow"];
const TAIL: &[&str] = &["log", "tail", "--store", "URL"];
const HEALTH: &[&str] = &["health", "URL", "--timeout", "40s"];

/// Runs each command on each source, all at the same time.
fn all_end(sources: &[Source], commands: &[&[&str]], code: i32) {
    thread::scope(|scope| {
        for source in sources {
            for command in commands {
                scope.spawn(|| source.ends(command, code));
            }
        }
    });
}

#[test]
fn a_source_that_breaks_the_protocol_ends_every_command_even_one_that_follows() {
    all_end(&VIOLATIONS, &[EXPORT, COPY, FOLLOW, TAIL], 1);
}

#[test]
fn a_source_that_never_completes_a_response_ends_a_copy_and_an_export() {
    all_end(&OUTAGES, &[EXPORT, COPY], 1);
}

#[test]
fn a_probe_of_a_hostile_server_ends() {
    let [_, _, header_lines, header_line, redirect] = VIOLATIONS;
    all_end(&[header_lines, header_line, redirect], &[HEALTH], 3);
    let [informational, ..] = OUTAGES;
    let endless = flood(OK, "x", "the response was cut off");
    let slow = dribble(OK, "x", "no complete response within 10s");
    all_end(&[informational, endless, slow], &[HEALTH], 3);
}
