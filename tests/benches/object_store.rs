//! How fast a log in object storage is: creates, and the replay of a whole log from segments and from SQLite.
//!
//! `cargo bench --package tests --bench object_store` starts a Ceph gateway on this machine, which shares its cores with
//! the clients. `-- --pets 10000000` replays that many pets in commits of 256.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use application::{
    LogAccess,
    log::commit::Entry,
    ports::{EventLog as _, LogSource as _, Position},
};
use clap::Parser;
use domain::test_values::{added, numbered};
use harness::{Gateway, append_in_batches, create, history, open_embedded, open_node};
use tokio::task::JoinSet;

/// How long each number of clients writes.
const ROUND: Duration = Duration::from_secs(10);
const CLIENTS: [usize; 3] = [1, 16, 64];

#[derive(Parser)]
struct Arguments {
    /// How many commits of one pet are replayed.
    #[arg(long, default_value_t = 20_000)]
    commits: u64,
    /// How many pets in commits of 256 are replayed.
    #[arg(long, default_value_t = 1_000_000)]
    pets: i64,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let gateway = Gateway::shared();
    for clients in CLIENTS {
        creates(gateway, clients).await;
    }
    replay(gateway, "commits of one pet", arguments.commits, 1).await;
    replay(gateway, "commits of 256 pets", arguments.pets.cast_unsigned().div_ceil(256), 256).await;
}

async fn creates(gateway: &Gateway, clients: usize) {
    let store = Arc::new(open_node(Arc::new(gateway.open(&gateway.url()).await), LogAccess::Shared).await);
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let store = store.clone();
        running.spawn(async move {
            let mut pets = 0;
            while begun.elapsed() < ROUND {
                create(&store, "Rex").await.expect("a sound engine takes every pet");
                pets += 1;
            }
            pets
        });
    }
    let pets: u32 = running.join_all().await.into_iter().sum();
    let rate = f64::from(pets) / begun.elapsed().as_secs_f64();
    println!("{clients:>3} clients: {rate:>7.0} creates/s");
}

/// Stores a history in SQLite and in a bucket, and replays both.
async fn replay(gateway: &Gateway, what: &str, commits: u64, pets: i64) {
    let entry = |id: i64| Entry {
        event: added(id, numbered(id.cast_unsigned())),
        by: application::OwnerId("owner".into()),
        request_key: None,
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let sqlite = directory.path().join("log");
    let log = open_embedded("sqlite", &sqlite);
    append_in_batches(&*log, history(commits, pets, entry)).await;
    log.close().await;
    let begun = Instant::now();
    let store = open_node(open_embedded("sqlite", &sqlite), LogAccess::Exclusive).await;
    println!("{commits} {what}: replayed from SQLite in {:.2} s", begun.elapsed().as_secs_f64());
    drop(store);

    let url = gateway.url();
    let log = gateway.open(&url).await;
    let begun = Instant::now();
    if pets == 1 {
        application::log::contract::append_all(&log, history(commits, pets, entry)).await;
    } else {
        append_in_batches(&log, history(commits, pets, entry)).await;
    }
    println!("{commits} {what}: stored in the bucket in {:.2} s", begun.elapsed().as_secs_f64());
    log.close().await;
    let begun = Instant::now();
    let log = gateway.open(&url).await;
    let opened = begun.elapsed();
    let store = open_node(Arc::new(log), LogAccess::Shared).await;
    let replayed = begun.elapsed();
    println!(
        "{commits} {what}: opened in {:.2} s and replayed from the bucket in {:.2} s",
        opened.as_secs_f64(),
        replayed.as_secs_f64()
    );
    drop(store);
    let log = gateway.open(&url).await;
    let begun = Instant::now();
    let mut position = Position::START;
    while let Some(last) =
        log.read(position, application::ports::ReadBound::BATCH).await.expect("it reads").last()
    {
        position = last.position;
    }
    println!("{commits} {what}: downloaded in {:.2} s", begun.elapsed().as_secs_f64());
}
