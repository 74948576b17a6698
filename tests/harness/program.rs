//! Builds and runs the program `petstore`.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::http::Call;

/// Longer than any start or stop takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often to look again for something that must happen soon.
const GLANCE: Duration = Duration::from_millis(10);

/// The program, built from the sources as they are now.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("dev"))
}

/// The program as it is meant to be run, for benchmarks.
pub fn release_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("release"))
}

fn build(profile: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args([
            "build",
            "--package",
            "bin",
            "--bin",
            "petstore",
            "--message-format",
            "json",
            "--profile",
            profile,
        ])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is the parent"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "the program builds");
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
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

/// Runs a command of the program to its end.
pub fn petstore<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Finished {
    let output =
        Command::new(program()).args(arguments).stdin(Stdio::null()).output().expect("the program runs");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

/// A running service with a folder and an API key of its own. Killed when dropped.
pub struct App {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
    /// A key with every scope.
    pub key: String,
    program: PathBuf,
    store: String,
    flags: Vec<String>,
}

impl App {
    /// Starts on an empty sled store.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts on an empty sled store, with more flags.
    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_program(program(), flags)
    }

    /// Starts this build of the program on an empty sled store.
    pub fn start_program(program: &Path, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = format!("sled:{}", folder.path().join("log").display());
        Self::start_on(program, &store, folder, flags)
    }

    /// Starts on this store, with the files of the service in `folder`.
    pub fn start_on(program: &Path, store: &str, folder: TempDir, flags: &[&str]) -> Self {
        let key = issue_key(&folder.path().join("keys.toml"), &["--name", "test"]);
        let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let child = spawn(program, folder.path(), store, &flags);
        let (program, store) = (program.to_path_buf(), store.to_owned());
        let mut app = Self { child, address: ([127, 0, 0, 1], 0).into(), folder, key, program, store, flags };
        app.wait_until_ready();
        app
    }

    /// Ends the process without warning.
    pub fn kill(&mut self) {
        self.child.kill().expect("the service was running");
        self.child.wait().expect("a killed process ends");
    }

    /// Asks the process to end and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait_until_ended()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs").success());
    }

    /// Waits for the process to end by itself.
    pub fn wait_until_ended(&mut self) -> ExitStatus {
        eventually("the service ends", || self.child.try_wait().expect("a child can be asked"))
    }

    /// Starts the service again on the same files, after it ended.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.program, self.folder.path(), &self.store, &self.flags);
        self.wait_until_ready();
    }

    /// Kills the service and starts it again.
    pub fn crash(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Where the service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the service shows probes and metrics, if it was started with `--ops-listen`.
    pub fn operators(&self) -> SocketAddr {
        let (stdout, _) = self.printed();
        let line = stdout.lines().find_map(|line| line.strip_prefix("probes and metrics on http://"));
        line.expect("--ops-listen was given").parse().expect("an address")
    }

    /// The process id of the service.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The URL of the store.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The folder with all files of the service.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file with the API keys.
    pub fn keys_file(&self) -> PathBuf {
        self.folder.path().join("keys.toml")
    }

    /// What the service has printed since its last start, standard output and standard error.
    pub fn printed(&self) -> (String, String) {
        let read = |name| fs::read_to_string(self.folder.path().join(name)).expect("the output is kept");
        (read("stdout"), read("stderr"))
    }

    /// Makes another key.
    pub fn issue_key(&self, arguments: &[&str]) -> String {
        issue_key(&self.keys_file(), arguments)
    }

    /// A call with the key of this service.
    pub fn call(&self, method: &str, path: &str) -> Call {
        self.anonymous(method, path).header("Authorization", &format!("Bearer {}", self.key))
    }

    /// A call without a key.
    pub fn anonymous(&self, method: &str, path: &str) -> Call {
        Call::new(self.address, method, path)
    }

    /// `GET` with the key.
    pub fn get(&self, path: &str) -> crate::Answer {
        self.call("GET", path).send()
    }

    /// `GET` with another key.
    pub fn get_as(&self, key: &str, path: &str) -> crate::Answer {
        self.anonymous("GET", path).header("Authorization", &format!("Bearer {key}")).send()
    }

    /// `POST /v1/pets` with the key and this body.
    pub fn post(&self, body: &str) -> crate::Answer {
        self.call("POST", "/v1/pets").json(body).send()
    }

    fn wait_until_ready(&mut self) {
        self.address = eventually("the service listens", || {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                panic!("the service ended with {status}: {}", self.printed().1);
            }
            let (stdout, _) = self.printed();
            let address = stdout.split("http://").nth(1)?.split_ascii_whitespace().next()?;
            address.parse().ok()
        });
        eventually("the service is ready", || {
            (self.anonymous("GET", "/readyz").try_send()?.status == 200).then_some(())
        });
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // It may have ended already, which is just as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until it sees something, and fails with the words of the expectation if that never happens.
pub fn eventually<T>(expectation: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{expectation} within {PATIENCE:?}");
        thread::sleep(GLANCE);
    }
}

fn spawn(program: &Path, folder: &Path, store: &str, flags: &[String]) -> Child {
    let output = |name| File::create(folder.join(name)).expect("the folder can be written");
    Command::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--store", store, "--keys"])
        .arg(folder.join("keys.toml"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(output("stdout"))
        .stderr(output("stderr"))
        .spawn()
        .expect("the program starts")
}

fn issue_key(file: &Path, arguments: &[&str]) -> String {
    let file = file.to_str().expect("temporary folders have plain names");
    let issued = petstore(["keys", "issue", "--keys", file].iter().chain(arguments));
    assert_eq!(issued.code, Some(0), "a key is issued: {}", issued.stderr);
    issued.stdout.lines().last().expect("the key is the last line").to_owned()
}
