//! A PostgreSQL server installed on this machine, in a temporary directory and on a free port.

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    os::unix::{
        fs::{MetadataExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
};

use tempfile::TempDir;

use crate::{
    program::{INTERVAL, Running, free_port, signal, wait_until},
    startup::Startup,
    tools::spawn_server,
};

const USER: &str = "petstore";
const PASSWORD: &str = "hunter2";
/// What the server prints once it can be used; a standby says that they are read-only.
const READY: [&str; 2] = [
    "database system is ready to accept connections",
    "database system is ready to accept read-only connections",
];
/// The locks of [`PostgresServer::lock`] that are held.
const LOCKS: &str = "FROM pg_locks WHERE relation = 'petstore_commits'::regclass \
                     AND mode = 'AccessExclusiveLock' AND granted";
/// What a server prints when the processes of the one that was killed have not all noticed yet.
const NOT_YET: &str = "pre-existing shared memory block";

/// A running server. Killed and removed when dropped.
#[derive(Debug)]
pub struct PostgresServer {
    child: Running,
    address: SocketAddr,
    directory: TempDir,
    settings: Vec<String>,
    databases: u32,
    /// The processes that are stopped, the first one first.
    frozen: Vec<u32>,
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A stopped process would outlive the server.
        self.thaw();
    }
}

impl PostgresServer {
    /// Makes and starts a server with the settings it has out of the box. Panics if the machine has none.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Makes and starts a server with these settings (`name=value`).
    pub fn start_with(settings: &[&str]) -> Self {
        let directory = new_data();
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        Self::run(directory, settings)
    }

    /// Makes and starts a server that speaks TLS as `localhost`; its certificate is [`certificate`](Self::certificate).
    pub fn start_with_tls() -> Self {
        let directory = new_data();
        let made = as_other_user(Command::new("openssl"))
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '))
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
            .current_dir(directory.path())
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
        let file = |name: &str| directory.path().join(name).display().to_string();
        let (certificate, key) = (file("cert.pem"), file("key.pem"));
        let settings =
            vec!["ssl=on".into(), format!("ssl_cert_file={certificate}"), format!("ssl_key_file={key}")];
        Self::run(directory, settings)
    }

    /// Copies a running server and starts the copy as its standby, called `standby`.
    pub fn standby_of(primary: &Self) -> Self {
        let directory = directory();
        let copied = tool("pg_basebackup")
            .args(["--dbname", &primary.url("postgres"), "--write-recovery-conf", "--checkpoint", "fast"])
            .args(["--no-sync", "--pgdata"])
            .arg(directory.path().join("data"))
            .current_dir(directory.path())
            .output()
            .expect("pg_basebackup runs");
        assert!(copied.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&copied.stderr));
        Self::run(directory, vec!["cluster_name=standby".into()])
    }

    fn run(directory: TempDir, settings: Vec<String>) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let child = spawn(directory.path(), address, &settings);
        let mut server = Self { child, address, directory, settings, databases: 0, frozen: vec![] };
        server.wait_until_ready();
        server
    }

    /// Ends the server without warning.
    pub fn kill(&mut self) {
        self.child.0.kill().expect("the server was running");
        self.child.0.wait().expect("a killed process ends");
    }

    /// Stops all processes of the server where they stand: they keep their connections and say nothing.
    pub fn freeze(&mut self) {
        let server = self.child.0.id();
        // First the one that would start others.
        signal(server, "STOP");
        self.frozen.push(server);
        let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
        for child in children.expect("the server is running").split_whitespace() {
            // One that has just ended need not be stopped.
            let _ = Command::new("kill").args(["-s", "STOP", child]).stderr(Stdio::null()).status();
            self.frozen.push(child.parse().expect("a process id"));
        }
    }

    /// Resumes a frozen server.
    pub fn thaw(&mut self) {
        for process in self.frozen.drain(..).rev() {
            let _ = Command::new("kill")
                .args(["-s", "CONT", &process.to_string()])
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Asks the server to end, which cuts all connections, and waits until it has.
    pub fn stop(&mut self) {
        signal(self.child.0.id(), "INT");
        self.child.0.wait().expect("a server that is asked to end does so");
    }

    /// Starts the server again on the same data and port, after it ended.
    pub fn start_again(&mut self) {
        self.child = self.spawn();
        self.wait_until_ready();
    }

    /// Makes the primary out of a standby, and waits until it is.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "SELECT pg_promote()"), "t");
    }

    /// The certificate of a server that speaks TLS, as a PEM file.
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes an empty database and returns its name.
    pub fn create_database(&mut self) -> String {
        self.databases += 1;
        let name = format!("pets{}", self.databases);
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// The URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@{}/{database}", self.address)
    }

    /// Like [`url`](Self::url), with a minute for opening a session. For tests that are not about timeouts: the machine may
    /// be busy.
    pub fn url_with_long_timeout(&self, database: &str) -> String {
        format!("{}?connect_timeout=60", self.url(database))
    }

    /// Runs SQL as the owner of everything and returns what it prints, without headings.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        let done = self.psql(database, statement).output().expect("psql runs");
        assert!(done.status.success(), "{statement}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("psql prints UTF-8").trim().to_owned()
    }

    /// Locks the table of a log against readers and writers, until [`unlock`](Self::unlock).
    pub fn lock(&self, database: &str) -> Running {
        let lock = "BEGIN; LOCK TABLE petstore_commits IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(3600)";
        let session = self.psql(database, lock).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let session = Running(session.expect("psql runs"));
        wait_until("the table is locked", || self.sql(database, &format!("SELECT count(*) {LOCKS}")) == "1");
        session
    }

    /// Ends the session that has locked the table.
    pub fn unlock(&self, database: &str) {
        self.sql(database, &format!("SELECT pg_terminate_backend(pid) {LOCKS}"));
    }

    fn psql(&self, database: &str, statement: &str) -> Command {
        let mut psql = tool("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", statement])
            .arg(self.url(database))
            .current_dir(self.directory.path());
        psql
    }

    fn spawn(&self) -> Running {
        spawn(self.directory.path(), self.address, &self.settings)
    }

    fn wait_until_ready(&mut self) {
        let log = self.directory.path().join("log");
        let mut startup = Startup::new("PostgreSQL", &log);
        loop {
            let text = fs::read_to_string(&log).expect("the output is kept");
            if READY.iter().any(|ready| text.contains(ready)) {
                return;
            }
            let ended = self.child.0.try_wait().expect("a child can be asked").is_some();
            if ended && text.contains(NOT_YET) {
                self.child = self.spawn();
            }
            startup.check(&mut self.child.0, || health(self.address));
            thread::sleep(INTERVAL);
        }
    }
}

/// The server's response to `pg_isready`.
fn health(address: SocketAddr) -> String {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let asked = tool("pg_isready").args(["--host", &host, "--port", &port]).output();
    String::from_utf8_lossy(&asked.expect("pg_isready runs").stdout).trim().to_owned()
}

/// A temporary directory that the server may use.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    if let Some((user, group)) = other_user() {
        chown(directory.path(), Some(user), Some(group)).expect("root may give a directory away");
    }
    directory
}

/// A temporary directory with the data of a new server. `initdb` takes a second of CPU time, so it runs once, and every
/// server unpacks its result.
fn new_data() -> TempDir {
    static ARCHIVE: OnceLock<Vec<u8>> = OnceLock::new();
    let archive = ARCHIVE.get_or_init(|| {
        let made = initialised();
        let packed = Command::new("tar").args(["--create", "data"]).current_dir(made.path()).output();
        packed.expect("tar runs").stdout
    });
    let directory = directory();
    let mut unpack = as_other_user(Command::new("tar"));
    unpack.args(["--extract", "--preserve-permissions"]).current_dir(directory.path()).stdin(Stdio::piped());
    let mut unpacking = unpack.spawn().expect("tar runs");
    let mut input = unpacking.stdin.take().expect("a pipe");
    input.write_all(archive).expect("tar reads the archive");
    drop(input);
    assert!(unpacking.wait().expect("tar ends").success(), "the data of a new server is unpacked");
    directory
}

fn initialised() -> TempDir {
    let temporary = directory();
    let directory = temporary.path();
    let password = directory.join("password");
    fs::write(&password, PASSWORD).expect("the directory can be written");
    let made = tool("initdb")
        .args(["--username", USER, "--auth", "scram-sha-256", "--no-sync", "--no-locale"])
        .args(["--encoding", "UTF8", "--pwfile"])
        .arg(&password)
        .arg("--pgdata")
        .arg(directory.join("data"))
        .current_dir(directory)
        .output()
        .expect("initdb runs");
    assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    let access = File::options().append(true).open(directory.join("data/pg_hba.conf"));
    let added = access.and_then(|mut file| file.write_all(b"host all all samenet scram-sha-256\n"));
    added.expect("the settings can be written");
    temporary
}

fn spawn(directory: &Path, address: SocketAddr, settings: &[String]) -> Running {
    let log = File::create(directory.join("log")).expect("the directory can be written");
    let mut command = tool("postgres");
    command.arg("-D").arg(directory.join("data")).args(["-p", &address.port().to_string()]);
    command.args(["-c", &format!("listen_addresses={}", address.ip()), "-c", "unix_socket_directories="]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    let both = log.try_clone().expect("a file can be shared");
    let server = spawn_server(command.current_dir(directory).stdin(Stdio::null()).stdout(both).stderr(log));
    Running(server.expect("PostgreSQL starts"))
}

/// A program of PostgreSQL, as a user that it is willing to run as.
fn tool(name: &str) -> Command {
    as_other_user(Command::new(find(name)))
}

fn as_other_user(mut command: Command) -> Command {
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command
}

fn find(name: &str) -> PathBuf {
    let mut places: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.filter_map(Result::ok).map(|version| version.path().join("bin")).collect())
        .unwrap_or_default();
    // The latest version goes first.
    places.sort_by_key(|place| {
        place.parent().and_then(Path::file_name).and_then(|version| version.to_str()?.parse::<u32>().ok())
    });
    places.reverse();
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let found = places.into_iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no {name} here: install PostgreSQL (apt-get install postgresql)"))
}

/// PostgreSQL rejects to run as root: the user and group to be instead, if this is root.
fn other_user() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").expect("every process can be looked at").uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the users can be listed");
    let ids = |name: &str| {
        let user = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = user.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(ids("postgres").or_else(|| ids("nobody")).expect("there is a user postgres or nobody"))
}
