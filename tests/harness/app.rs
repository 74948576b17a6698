//! The running service in the hands of a test, which starts, calls, stops and kills it.

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    engine::Place,
    http::{Call, Response},
    program::{self, Finished, INTERVAL, eventually, petstore, program, wait_until},
    startup::Startup,
};

/// A running service with its own directory and API key. Killed when dropped.
pub struct App {
    /// `None` before the first start.
    child: Option<Child>,
    address: SocketAddr,
    directory: TempDir,
    /// A key with every scope.
    pub key: String,
    program: PathBuf,
    store: String,
    flags: Vec<String>,
    /// The port to listen on; 0 for any.
    port: u16,
    /// A command that runs the service instead of being it, a tracer for example.
    wrapper: Vec<String>,
    /// The server that keeps the log, if it needs one.
    place: Option<Place>,
}

impl App {
    /// Starts on an empty store, kept by sled unless `TEST_ENGINE` names another engine.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts on an empty store, with more flags.
    pub fn start_with(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = Place::new(directory.path());
        let mut app = Self::stopped_on(program(), &place.store, directory, flags);
        app.run_by(&place.wrapper);
        app.place = Some(place);
        app.start_again();
        app
    }

    /// Starts on this store, with the files of the service in `directory`.
    pub fn start_on(program: &Path, store: &str, directory: TempDir, flags: &[&str]) -> Self {
        let mut app = Self::stopped_on(program, store, directory, flags);
        app.start_again();
        app
    }

    /// Starts on this store, with a new directory for its other files.
    pub fn on(store: &str) -> Self {
        Self::on_with(store, &[])
    }

    /// Starts on this store, with more flags.
    pub fn on_with(store: &str, flags: &[&str]) -> Self {
        let mut app = Self::stopped(store, flags);
        app.start_again();
        app
    }

    /// A service on this store that has not been started yet, with a new directory for its other files.
    pub fn stopped(store: &str, flags: &[&str]) -> Self {
        Self::stopped_on(program(), store, tempfile::tempdir().expect("a temporary directory"), flags)
    }

    /// Starts on an empty embedded store in the directory of the service.
    pub fn on_engine(engine: &str, flags: &[&str]) -> Self {
        let mut app = Self::stopped_on_engine(engine, flags);
        app.start_again();
        app
    }

    /// A service on an embedded store in its directory that has not been started yet.
    pub fn stopped_on_engine(engine: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = format!("{engine}:{}", directory.path().join("log").display());
        Self::stopped_on(program(), &store, directory, flags)
    }

    /// A service that has not been started yet.
    pub fn stopped_on(program: &Path, store: &str, directory: TempDir, flags: &[&str]) -> Self {
        let key = issue_key(&directory.path().join("keys.toml"), &["--name", "test"]);
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        Self {
            child: None,
            address: ([127, 0, 0, 1], 0).into(),
            directory,
            key,
            program: program.to_path_buf(),
            store: store.to_owned(),
            flags,
            port: 0,
            wrapper: vec![],
            place: None,
        }
    }

    /// From the next start on, the store is kept here.
    pub fn use_store(&mut self, store: &str) {
        store.clone_into(&mut self.store);
    }

    /// From the next start on, the service gets these flags.
    pub fn use_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    }

    /// From the next start on, the service listens on this port.
    pub fn use_port(&mut self, port: u16) {
        self.port = port;
    }

    /// From the next start on, the service is run by this command, which gets its command line. It must let
    /// the service have its own process id, or signals hit the wrong one.
    pub fn run_by(&mut self, wrapper: &[String]) {
        self.wrapper = wrapper.to_vec();
    }

    /// Ends the process without warning.
    pub fn kill(&mut self) {
        let child = self.child();
        child.kill().expect("a child can be killed");
        child.wait().expect("a killed process ends");
    }

    /// Asks the process to end and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait_until_ended()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        program::signal(self.pid(), name);
    }

    /// Waits for the process to end.
    pub fn wait_until_ended(&mut self) -> ExitStatus {
        let child = self.child();
        eventually("the service ends", || child.try_wait().expect("a child can be asked"))
    }

    /// Starts the service again on the same files, after it ended.
    pub fn start_again(&mut self) {
        self.begin();
        if let Err(ended) = self.wait_until_listening() {
            panic!("the service ended with {:?}: {}", ended.code, ended.stderr);
        }
        self.wait_until_ready();
    }

    /// The response of a probe to a client without a key.
    pub fn probe(&self, path: &str) -> Response {
        self.anonymous("GET", path).send()
    }

    /// The metrics of a service that was started with `--admin-listen`.
    pub fn metrics(&self) -> String {
        Call::new(self.admin(), "GET", "/metrics").send().text().to_owned()
    }

    /// The value of a series in its metrics.
    pub fn metric(&self, series: &str) -> f64 {
        value_of(series, &self.metrics())
    }

    /// Waits until the service is ready.
    pub fn wait_until_ready(&self) {
        let log = self.directory.path().join("stderr");
        let mut startup = Startup::new("the service", &log);
        loop {
            let health = match self.anonymous("GET", "/readyz").try_send() {
                Some(ready) if ready.status == 200 => return,
                Some(ready) => ready.text().to_owned(),
                None => "no response".to_owned(),
            };
            startup.check_time(|| health);
            thread::sleep(INTERVAL);
        }
    }

    /// Waits until the service is not ready, and returns the response of the probe.
    pub fn wait_until_not_ready(&self) -> Response {
        eventually("the service is not ready", || {
            Some(self.anonymous("GET", "/readyz").send()).filter(|ready| ready.status == 503)
        })
    }

    /// Waits until the service has logged these words, and returns its log.
    pub fn wait_for_log(&self, words: &str) -> String {
        eventually(&format!("the log contains {words:?}"), || {
            Some(self.printed().1).filter(|log| log.contains(words))
        })
    }

    /// Starts the service again and waits until it serves reads; whether it accepts writes is another
    /// question. Tells how it ended if it did not come that far.
    pub fn try_start_again(&mut self) -> Result<(), Finished> {
        self.begin();
        self.wait_until_listening()?;
        eventually("the service serves or ends", || {
            let serves = self
                .call("GET", "/v1/pets?limit=1")
                .try_send()
                .is_some_and(|response| response.status == 200);
            let ended = self.ended();
            (serves || ended.is_some()).then(|| ended.map_or(Ok(()), Err))
        })
    }

    /// Starts the service and does not wait for anything.
    pub fn begin(&mut self) {
        let output =
            |name| File::create(self.directory.path().join(name)).expect("the directory can be written");
        let mut words = self.wrapper.iter().map(OsStr::new).chain([self.program.as_os_str()]);
        let child = Command::new(words.next().expect("the program is always there"))
            .args(words)
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.port)])
            .args(["--store", &self.store, "--keys"])
            .arg(self.keys_file())
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("the program starts");
        self.child = Some(child);
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

    /// Where the service shows probes and metrics, if it was started with `--admin-listen`.
    pub fn admin(&self) -> SocketAddr {
        eventually("the service says where its probes and metrics are", || {
            let announced = self.announced();
            let (address, _) = announced
                .split_once("probes, metrics and the log on ")?
                .1
                .split_once("://")?
                .1
                .split_once('\n')?;
            Some(address.parse().expect("an address"))
        })
    }

    /// The process id of the service.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the service was started").id()
    }

    /// The URL of the store.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The directory with all files of the service.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The file with the API keys.
    pub fn keys_file(&self) -> PathBuf {
        self.directory.path().join("keys.toml")
    }

    /// What the service has printed since its last start, standard output and standard error.
    pub fn printed(&self) -> (String, String) {
        let read = |name| fs::read_to_string(self.directory.path().join(name)).expect("the output is kept");
        (read("stdout"), read("stderr"))
    }

    /// The complete lines on standard output: with `--log-format json`, their messages.
    fn announced(&self) -> String {
        let (stdout, _) = self.printed();
        let complete = stdout.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let message = |line: &str| match serde_json::from_str::<Value>(line) {
            Ok(line) => format!("{}\n", line["message"].as_str().expect("a line has a message")),
            Err(_) => line.to_owned(),
        };
        complete.map(message).collect()
    }

    /// Makes another key.
    pub fn issue_key(&self, arguments: &[&str]) -> String {
        issue_key(&self.keys_file(), arguments)
    }

    /// Makes another key, and waits until the service accepts it.
    pub fn issue_active_key(&self, arguments: &[&str]) -> String {
        let key = self.issue_key(arguments);
        wait_until("the new key is active", || self.get_as(&key, "/v1/pets").status != 401);
        key
    }

    /// Revokes a key.
    pub fn revoke(&self, key: &str) {
        petstore(["keys", "revoke", key, "--keys", self.keys_file().to_str().expect("a plain path")])
            .exits_with(0);
    }

    /// Waits until a list with this key gets this status.
    pub fn wait_for_status(&self, key: &str, status: u16) {
        wait_until("a change of the key file is active", || self.get_as(key, "/v1/pets").status == status);
    }

    /// Makes a key that may read the log of the service, and waits until the service accepts it.
    pub fn log_key(&self) -> String {
        self.issue_active_key(&["--name", "backup", "--scope", "log"])
    }

    /// curl over HTTP/2, with the key of this service; the caller adds the rest.
    pub fn curl(&self) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--http2-prior-knowledge"]);
        curl.args(["--header", &format!("Authorization: Bearer {}", self.key)]);
        curl
    }

    /// A call with the key of this service.
    pub fn call(&self, method: &str, path: &str) -> Call {
        self.anonymous(method, path).key(&self.key)
    }

    /// A call without a key.
    pub fn anonymous(&self, method: &str, path: &str) -> Call {
        Call::new(self.address, method, path)
    }

    /// `GET` with the key.
    pub fn get(&self, path: &str) -> Response {
        self.call("GET", path).send()
    }

    /// Every pet from this page to the last, as `Link` leads.
    pub fn walk(&self, first_page: &str) -> Vec<Value> {
        let mut pets = Vec::new();
        let mut path = first_page.to_owned();
        loop {
            let page = self.get(&path);
            assert_eq!(page.status, 200, "{path}: {}", page.text());
            let Value::Array(more) = page.json() else { panic!("a list is an array: {}", page.text()) };
            pets.extend(more);
            match page.next() {
                Some(next) => next.clone_into(&mut path),
                None => return pets,
            }
        }
    }

    /// Every pet of the service.
    pub fn all_pets(&self) -> Vec<Value> {
        self.walk("/v1/pets?limit=100")
    }

    /// `GET` with another key.
    pub fn get_as(&self, key: &str, path: &str) -> Response {
        self.anonymous("GET", path).key(key).send()
    }

    /// Adds a pet with this name.
    pub fn add(&self, name: &str) -> Response {
        let response = self.post(&format!(r#"{{"name":"{name}","categoryId":7}}"#));
        assert_eq!(response.status, 201, "{}", response.text());
        response
    }

    /// `POST /v1/pets` with the key and this body.
    pub fn post(&self, body: &str) -> Response {
        self.call("POST", "/v1/pets").json(body).send()
    }

    /// Waits until the service responds, ready or not, or returns how it ended.
    pub fn wait_until_listening(&mut self) -> Result<(), Finished> {
        self.address = eventually("the service listens", || {
            if let Some(ended) = self.ended() {
                return Some(Err(ended));
            }
            let announced = self.announced();
            let line = announced.lines().find(|line| line.starts_with("petstore "))?;
            let address = line.split("://").nth(1)?.split_ascii_whitespace().next()?;
            address.parse().ok().map(Ok)
        })?;
        Ok(())
    }

    /// How the service ended, if it did.
    fn ended(&mut self) -> Option<Finished> {
        let status = self.child().try_wait().expect("a child can be asked")?;
        let (stdout, stderr) = self.printed();
        Some(Finished { code: status.code(), stdout, stderr })
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the service was started")
    }
}

/// The value of a series in metrics.
pub fn value_of(series: &str, metrics: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{series} in {metrics}")).parse().expect("a number")
}

impl Drop for App {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already, which is just as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn issue_key(file: &Path, arguments: &[&str]) -> String {
    let file = file.to_str().expect("temporary directories have plain names");
    let issued = petstore(["keys", "issue", "--keys", file].iter().chain(arguments));
    assert_eq!(issued.code, Some(0), "a key is issued: {}", issued.stderr);
    issued.stdout.lines().last().expect("the key is the last line").to_owned()
}
