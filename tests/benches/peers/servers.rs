//! The measured servers: each is a separate process, pinned to the servers' core.

use std::{
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{self, Command, Stdio},
};

use harness::{App, Call, PACKAGED, PostgresServer, built};
use tempfile::TempDir;

use crate::load::{Load, Measured};

/// The command of cargo in the README.
pub(crate) const RELEASE: &str = "build --release";

pub(crate) const CEILING: &str = "plain axum (ceiling)";
pub(crate) const GROUP_COMMIT: &str = "axum + rusqlite, group commit";

const SERVER_CORE: &str = "0";
const CLIENT_CORE: &str = "1";
/// The service is measured with a rate limit, which is never reached.
const FLAGS: [&str; 2] = ["--rate-limit", "1000000/s"];

/// All servers, the ceiling first.
pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
    /// Removed after the servers have stopped.
    _directory: TempDir,
    _postgres: PostgresServer,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    address: SocketAddr,
    key: String,
    process: Process,
}

enum Process {
    Petstore(Box<App>),
    Peer { _child: harness::Running },
}

impl Servers {
    /// Starts every server on a store of at least this many pets.
    pub(crate) fn start(pets: usize) -> Self {
        let [release, packaged] = [RELEASE, PACKAGED].map(built);
        // Processes that are started now inherit the core, PostgreSQL's included.
        pin(SERVER_CORE);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = |name| directory.path().join(name).display().to_string();
        let mut postgres = PostgresServer::start();
        let database = postgres.create_database();
        let all = vec![
            peer(CEILING, "ceiling", pets, ""),
            petstore("petstore (sled)", &release, "sled"),
            petstore("petstore (SQLite)", &release, "sqlite"),
            petstore("petstore (sled), dist", &packaged, "sled"),
            petstore("petstore (SQLite), dist", &packaged, "sqlite"),
            peer("axum + rusqlite, commit per request", "commit-per-request", pets, &file("requests.db")),
            peer(GROUP_COMMIT, "group-commit", pets, &file("groups.db")),
            peer("axum + PostgreSQL", "postgres", pets, &postgres.url(&database)),
        ];
        pin(CLIENT_CORE);
        let servers = Self { all, _directory: directory, _postgres: postgres };
        for server in servers.petstores() {
            while server.add_pet() < pets {
                server.measure(&Load::fill());
            }
        }
        servers
    }

    pub(crate) fn petstores(&self) -> impl Iterator<Item = &Server> {
        self.all.iter().filter(|server| server.is_petstore())
    }
}

impl Server {
    pub(crate) fn is_petstore(&self) -> bool {
        matches!(self.process, Process::Petstore(_))
    }

    pub(crate) fn measure(&self, load: &Load) -> Measured {
        let measured = load.measure(self.address, &self.key);
        // A response on a new connection: the server has no connections left to accept, and leaves the core to the next one.
        Call::new(self.address, "GET", "/v1/pets?limit=1").key(&self.key).send();
        measured
    }

    /// Adds a pet to this petstore and returns its id.
    pub(crate) fn add_pet(&self) -> usize {
        let Process::Petstore(app) = &self.process else { panic!("{} is a peer", self.name) };
        app.add("Rex").json()["id"].as_u64().and_then(|id| id.try_into().ok()).expect("an id")
    }
}

fn petstore(name: &'static str, program: &Path, engine: &str) -> Server {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("{engine}:{}", directory.path().join("store").display());
    let app = App::start_on(program, &store, directory, &FLAGS);
    Server { name, address: app.address(), key: app.key.clone(), process: Process::Petstore(Box::new(app)) }
}

fn peer(name: &'static str, kind: &str, pets: usize, store: &str) -> Server {
    let program = env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .args(["--pets", &pets.to_string(), "--serve", kind, store])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer starts");
    let mut address = String::new();
    let stdout = child.stdout.take().expect("its output is piped");
    BufReader::new(stdout).read_line(&mut address).expect("the peer prints its address");
    Server {
        name,
        address: address.trim().parse().expect("an address"),
        key: "not checked".into(),
        process: Process::Peer { _child: harness::Running(child) },
    }
}

/// Binds this process, and the processes that it starts from now on, to a core.
fn pin(core: &str) {
    let pinned = Command::new("taskset")
        .args(["-acp", core, &process::id().to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(
        pinned.is_ok_and(|status| status.success()),
        "the benchmark needs taskset, and a core each for the servers and for the client"
    );
}
