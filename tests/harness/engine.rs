//! Where a test's service stores its log: one engine for all tests, chosen by an environment variable.

use std::{env, path::Path};

use crate::{Gateway, NatsCluster, NatsSync, PostgresServer};

/// Names the engine that tests which do not care use: `sled` (if not set), `sqlite`, `postgres`, `nats`, `s3` or `memory`.
const ENGINE: &str = "TEST_ENGINE";

/// A place for one log, with the server that keeps it if it needs one.
pub(crate) struct Place {
    pub(crate) store: String,
    /// The command that runs the service, if it needs more than a URL.
    pub(crate) wrapper: Vec<String>,
    _server: Option<Server>,
}

#[expect(dead_code, reason = "held for their end")]
enum Server {
    Postgres(PostgresServer),
    Nats(NatsCluster),
}

impl Place {
    /// A fresh place; files go into `directory`.
    pub(crate) fn new(directory: &Path) -> Self {
        let engine = env::var(ENGINE).unwrap_or_else(|_| "sled".into());
        let in_directory = |scheme: &str| format!("{scheme}:{}", directory.join("log").display());
        match engine.as_str() {
            "sled" | "sqlite" => Self { store: in_directory(&engine), wrapper: vec![], _server: None },
            "memory" => Self { store: "memory:".into(), wrapper: vec![], _server: None },
            "postgres" => {
                let mut server = PostgresServer::start();
                let database = server.create_database();
                Self {
                    store: server.url(&database),
                    wrapper: vec![],
                    _server: Some(Server::Postgres(server)),
                }
            }
            "nats" => {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                let cluster = runtime.block_on(NatsCluster::start(1, NatsSync::Always));
                Self { store: cluster.url("PETS"), wrapper: vec![], _server: Some(Server::Nats(cluster)) }
            }
            "s3" => {
                let gateway = Gateway::shared();
                Self { store: gateway.log(), wrapper: gateway.wrapper(), _server: None }
            }
            other => panic!("{ENGINE}={other} names no engine"),
        }
    }
}
