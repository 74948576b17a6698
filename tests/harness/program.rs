//! Builds the program `petstore` and runs its commands.

use std::{
    env,
    fmt::Debug,
    fs, mem,
    net::{Ipv4Addr, UdpSocket},
    ops::Range,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::{Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use tokio::net::TcpSocket;

/// Longer than any start or stop takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(3);
/// The longest time between two looks that counts.
const STEP_MAX: Duration = Duration::from_secs(1);
/// The first port that a server of a test may get.
const FIRST_PORT: u16 = 10_000;
/// How many ports a process reserves at once.
const RESERVED_PORTS: u16 = 100;
/// How often to look again for something that must happen soon.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);

/// The command of cargo that builds the program for packages.
pub const PACKAGED: &str = "build --profile dist --package bin --features servers";

/// The program, built from the sources as they are now, unless `TEST_PROGRAM` names another one.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    // With the same selection as the tests themselves, so that dependencies are compiled once for both.
    PROGRAM.get_or_init(|| built("build --workspace --all-features --bins --tests"))
}

/// The program as this command of cargo builds it, unless `TEST_PROGRAM` names another one.
pub fn built(command: &str) -> PathBuf {
    env::var_os("TEST_PROGRAM").map_or_else(|| build("petstore", command), PathBuf::from)
}

/// The example `one_file`.
pub fn one_file() -> PathBuf {
    build("one_file", "build --workspace --all-features --example one_file")
}

fn build(name: &str, command: &str) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // These variables of the running test would make cargo run build scripts again.
    for (name, _) in env::vars()
        .filter(|(name, _)| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix)))
    {
        cargo.env_remove(name);
    }
    let built = cargo
        .args(command.split(' '))
        .args(["--message-format", "json"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is the parent"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "the program builds");
    let is_program = |message: &serde_json::Value| {
        message["target"]["name"] == name && message["profile"]["test"] == false
    };
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(is_program)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo tells where the program is")
}

/// How a command of the program ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit code.
    pub code: Option<i32>,
    /// Everything on standard output.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
}

#[expect(clippy::return_self_not_must_use, reason = "a check is often all that a test wants")]
impl Finished {
    /// The value of a line such as `head hash   b8c4…`.
    pub fn value(&self, name: &str) -> &str {
        let line = self.stdout.lines().find(|line| line.split("  ").next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} in {self:?}"))[name.len()..].trim()
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn exits_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Checks that these words are on standard output.
    #[track_caller]
    pub fn prints(self, words: &str) -> Self {
        assert!(self.stdout.contains(words), "{words}: {self:?}");
        self
    }

    /// Checks that these words are on standard error.
    #[track_caller]
    pub fn says(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "{words}: {self:?}");
        self
    }

    /// The number of sentences that petstore has printed, besides the lines of the log.
    pub fn sentences(&self) -> usize {
        self.stderr.lines().filter(|line| line.starts_with("petstore: ")).count()
    }
}

/// Runs a command of the program to its end.
pub fn petstore<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Finished {
    finished(Command::new(program()).args(arguments))
}

/// Starts a service that must not start, on this store and with more flags.
pub fn serve(store: &str, flags: &[&str]) -> Finished {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let listen: &[&str] = if flags.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
    let keys = directory.path().join("keys.toml");
    let keys = keys.to_str().expect("temporary directories have plain names");
    petstore(["keys", "issue", "--name", "test", "--keys", keys]).exits_with(0);
    finished(
        Command::new(program()).args(["serve", "--store", store, "--keys", keys]).args(listen).args(flags),
    )
}

/// Runs a command to its end.
pub fn finished(command: &mut Command) -> Finished {
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

/// The number in an environment variable, if it is set.
pub fn number<T: FromStr>(variable: &str) -> Option<T> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill runs").success());
}

/// The records of a log, as `petstore log export` prints them.
pub fn exported(store: &str) -> Vec<String> {
    let exported = petstore(["log", "export", "--store", store]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    exported.stdout.lines().filter(|line| !line.starts_with("{\"manifest\"")).map(str::to_owned).collect()
}

/// The head hash of a log, as `petstore log verify` prints it.
pub fn head_hash(store: &str) -> String {
    let verified = petstore(["log", "verify", "--store", store]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    verified.value("head hash").to_owned()
}

/// A process that is killed when dropped.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a key to a file that only its owner can read.
pub fn key_file(directory: &Path, key: &str) -> PathBuf {
    let file = directory.join("log-key");
    fs::write(&file, format!("{key}\n")).expect("the directory can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    file
}

/// A port that was free a moment ago, that only this process gets from here, and that the system gives to no client.
/// Otherwise another could take it, or a client connect to itself, while its server is being restarted.
pub fn free_port() -> u16 {
    static RESERVED: Mutex<Range<u16>> = Mutex::new(0..0);
    let mut reserved = RESERVED.lock().expect("there were ports to reserve");
    loop {
        match reserved.next() {
            Some(port) if is_free(port) => return port,
            Some(_) => {}
            None => *reserved = reserve_ports(),
        }
    }
}

/// Whether nothing listens on a port. Does not listen itself: a process that another test starts inherits the socket until
/// its program runs, and would keep the port in use.
fn is_free(port: u16) -> bool {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a setting of every socket");
    socket.bind((Ipv4Addr::LOCALHOST, port).into()).is_ok()
}

/// Ports that no other process gets from here while this one runs: it holds a UDP socket on the first of them.
fn reserve_ports() -> Range<u16> {
    let clients = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux has a range");
    let end = clients.split_whitespace().next().and_then(|first| first.parse().ok()).expect("a port");
    for first in (FIRST_PORT..end).step_by(RESERVED_PORTS.into()) {
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)) {
            mem::forget(socket);
            return first..(first + RESERVED_PORTS).min(end);
        }
    }
    panic!("other processes have reserved all ports");
}

/// The end of a wait. Time in which this process was stopped, or got no processor, counts as one second at most.
#[derive(Debug)]
pub(crate) struct Deadline {
    left: Duration,
    asked: Instant,
}

impl Deadline {
    /// Ends after this time.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { left: timeout, asked: Instant::now() }
    }

    /// Whether the time is over. To be asked again and again.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        self.left = self.left.saturating_sub((now - self.asked).min(STEP_MAX));
        self.asked = now;
        self.left.is_zero()
    }
}

/// Looks until it sees something, and fails with the words of the expectation if that never happens.
pub fn eventually<T>(expectation: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut deadline = Deadline::after(TIMEOUT);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(!deadline.is_over(), "{expectation} within {TIMEOUT:?}");
        thread::sleep(INTERVAL);
    }
}

/// Waits until something holds, and fails with the words of the expectation if that never happens.
pub fn wait_until(expectation: &str, mut holds: impl FnMut() -> bool) {
    eventually(expectation, || holds().then_some(()));
}

/// Repeats an attempt until it succeeds, and fails with the words of the expectation and the last error if it never does.
pub async fn eventually_ok<T, E: Debug, F: Future<Output = Result<T, E>>>(
    expectation: &str,
    mut attempt: impl FnMut() -> F,
) -> T {
    let mut deadline = Deadline::after(TIMEOUT);
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(!deadline.is_over(), "{expectation} within {TIMEOUT:?}: {error:?}"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
