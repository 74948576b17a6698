//! The servers that are measured: each is a separate process, pinned to the servers' core.

use std::{
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
};

use harness::{App, PostgresServer, packaged_program};
use tempfile::TempDir;

use crate::load::{Load, Measured, Running, fill};

const SERVER_CORE: &str = "0";
const CLIENT_CORE: &str = "1";
/// Set and never reached: the service is measured with everything switched on.
const FLAGS: [&str; 2] = ["--rate-limit", "1000000/s"];

/// A running server.
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    address: SocketAddr,
    key: String,
    /// Kept until the contestant has been measured.
    running: Server,
}

/// Plain axum with a constant page.
pub(crate) struct Ceiling(Contestant);

enum Server {
    Petstore { _app: App },
    Peer { _peer: Peer, _files: Option<TempDir>, _postgres: Option<PostgresServer> },
}

/// A peer's process. Killed when dropped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already, which its measurements have shown.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts servers.
pub(crate) struct Start {
    /// Another build of petstore to be measured too, if `PETSTORE_BEFORE` names one.
    before: Option<PathBuf>,
}

impl Start {
    pub(crate) fn new() -> Self {
        Self { before: env::var_os("PETSTORE_BEFORE").map(PathBuf::from) }
    }

    /// Starts every server on a store of this many pets.
    pub(crate) fn all(&self, pets: usize) -> (Ceiling, Vec<Contestant>) {
        packaged_program();
        // What is started now inherits the core; so do PostgreSQL's processes.
        pin(SERVER_CORE);
        let ceiling = Ceiling(peer("ceiling", "ceiling", pets, "", None, None));
        let mut contestants = vec![
            petstore("petstore (sled)", packaged_program(), "sled", &FLAGS),
            petstore("petstore (SQLite)", packaged_program(), "sqlite", &FLAGS),
        ];
        if let Some(program) = &self.before {
            contestants.push(petstore("petstore before (sled)", program, "sled", &[]));
            contestants.push(petstore("petstore before (SQLite)", program, "sqlite", &[]));
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("pets.db").display().to_string();
        contestants.push(peer("axum + rusqlite", "rusqlite", pets, &file, Some(directory), None));
        let mut postgres = PostgresServer::start();
        let database = postgres.create_database();
        let url = postgres.url(&database);
        contestants.push(peer("axum + PostgreSQL", "postgres", pets, &url, None, Some(postgres)));
        pin(CLIENT_CORE);
        for contestant in &contestants {
            if let Server::Petstore { _app: app } = &contestant.running {
                fill(app, pets);
            }
        }
        (ceiling, contestants)
    }
}

impl Contestant {
    pub(crate) fn begin(&self, load: &Load) -> Running {
        load.begin(self.address, &self.key)
    }

    pub(crate) fn measure(&self, load: &Load) -> Measured {
        self.begin(load).finish()
    }
}

impl Ceiling {
    pub(crate) fn rate(&self, connections: usize) -> f64 {
        self.0.measure(&Load::ceiling(connections)).rate
    }
}

fn petstore(name: &'static str, program: &Path, engine: &str, flags: &[&str]) -> Contestant {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("{engine}:{}", directory.path().join("store").display());
    let app = App::start_on(program, &store, directory, flags);
    Contestant { name, address: app.address(), key: app.key.clone(), running: Server::Petstore { _app: app } }
}

fn peer(
    name: &'static str,
    kind: &str,
    pets: usize,
    store: &str,
    files: Option<TempDir>,
    postgres: Option<PostgresServer>,
) -> Contestant {
    let program = env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .args(["--serve", kind, &pets.to_string(), store])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer starts");
    let mut address = String::new();
    let stdout = child.stdout.take().expect("its output is piped");
    BufReader::new(stdout).read_line(&mut address).expect("it tells its address");
    Contestant {
        name,
        address: address.trim().parse().expect("an address"),
        key: "none is needed".into(),
        running: Server::Peer { _peer: Peer(child), _files: files, _postgres: postgres },
    }
}

/// Binds this process, and what it starts from now on, to a core.
fn pin(core: &str) {
    let pinned = Command::new("taskset")
        .args(["-acp", core, &process::id().to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(
        pinned.is_ok_and(|status| status.success()),
        "a benchmark of servers needs a core for them and one for the client, and taskset to pin them"
    );
}
