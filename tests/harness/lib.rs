//! The real program on a real socket and a real disk, for every test that needs one.

mod app;
mod browser;
mod ceph;
mod chance;
mod engine;
mod faulty_log;
mod history;
mod http;
mod http_proxy;
mod nats;
mod node;
mod postgres;
mod program;
mod proxy;
mod startup;
mod tools;

pub use app::{App, value_of};
pub use browser::Browser;
pub use ceph::{ACCESS_KEY, Gateway, SECRET_KEY, wrapper};
pub use chance::Chance;
pub use faulty_log::{FaultyLog, LogFault, in_format};
pub use history::{
    added, append_in_batches, close_embedded, fill_embedded, history, open_embedded, wait_until_unlocked,
};
pub use http::{Call, Connection, REX, Response, create_head, ids, json_of, raw};
pub use http_proxy::{HttpProxy, PutFault};
pub use nats::{NatsCluster, NatsServer, NatsSync};
pub use node::{all_pets, create, open_node, owner, pet_named, serve_node};
pub use postgres::PostgresServer;
pub use program::{
    Finished, PACKAGED, Running, built, eventually, eventually_ok, exported, finished, free_port, head_hash,
    key_file, number, one_file, petstore, program, serve, signal, wait_until,
};
pub use proxy::{CutProxy, DelayProxy};
pub use startup::Startup;
pub use tools::{
    files_below, node_module, not_run, python_tool, root, succeed, tell, tools, with_wrong_clock,
};
