//! How long a start takes after a clean stop and after `kill -9`, and how much memory a node needs per pet. Every start
//! replays the whole log.
//!
//! `cargo bench --package tests --bench start -- --pets 10000000 --directory target/ten-million` fills a store for each engine, or
//! uses the one that an earlier run has left in the directory, and starts the service on it. `--engines sled,sqlite,s3` adds object
//! storage, whose server shares the cores. Only ratios between runs on the same machine mean something.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use application::{
    OwnerId, RequestKey,
    log::{commit::Entry, contract},
    ports::EventLog,
};
use clap::Parser;
use domain::{
    CategoryId, NewPet,
    test_values::{added, numbered},
};
use harness::{App, Gateway, PACKAGED, append_in_batches, built, history, open_embedded};
use tokio::runtime::Runtime;

#[derive(Parser)]
struct Arguments {
    /// How many pets there are, rounded up to whole commits.
    #[arg(long, default_value_t = 1_000_000)]
    pets: i64,
    /// How many of the last of them were added with an `Idempotency-Key`.
    #[arg(long, default_value_t = 0)]
    keys: i64,
    /// How many of them share a commit.
    #[arg(long, default_value_t = 256)]
    per_commit: i64,
    /// Where the stores are kept for the next run; a temporary directory if it is not given.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// The engines to compare.
    #[arg(long, value_delimiter = ',', default_value = "sled,sqlite")]
    engines: Vec<String>,
    /// How often each start is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let mut arguments = Arguments::parse();
    let of_last = arguments.pets % arguments.per_commit;
    arguments.pets += (arguments.per_commit - of_last) % arguments.per_commit;
    let temporary = tempfile::tempdir().expect("a temporary directory");
    // Cargo runs benchmarks in the directory of their package.
    let directory = arguments.directory.as_ref().map_or_else(
        || temporary.path().to_owned(),
        |given| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(given),
    );
    let program = built(PACKAGED);
    println!(
        "{:<8} {:<18} {:>10} {:>9} {:>9} {:>8} {:>9} {:>14}",
        "engine", "start", "pets", "open, s", "ready, s", "CPU, s", "RSS, MB", "RSS/pet, bytes"
    );
    let runtime = Runtime::new().expect("a runtime");
    for engine in &arguments.engines {
        let store = store(&runtime, engine, &directory, &arguments);
        for _ in 0..arguments.rounds {
            for (kind, is_killed_next) in [("after a clean stop", true), ("after kill -9", false)] {
                // Opening the log itself also closes it properly: the time that is the engine's own.
                let begun = Instant::now();
                runtime.block_on(async { open(&store).await.close().await });
                let opening = begun.elapsed();
                let started = start(&program, &store, is_killed_next);
                println!(
                    "{engine:<8} {:<18} {:>10} {:>9.2} {:>9.2} {:>8.2} {:>9.0} {:>14.1}",
                    kind,
                    arguments.pets,
                    opening.as_secs_f64(),
                    started.ready.as_secs_f64(),
                    started.cpu.as_secs_f64(),
                    started.memory / 1e6,
                    started.memory / f64::from(u32::try_from(arguments.pets).expect("a benchmark is small")),
                );
            }
        }
    }
}

/// The URL of a store with these pets.
fn store(runtime: &Runtime, engine: &str, directory: &Path, arguments: &Arguments) -> String {
    if engine == "s3" {
        let url = Gateway::shared().url();
        runtime.block_on(fill(&url, arguments));
        return url;
    }
    let path = directory.join(format!("{engine}-{}-{}", arguments.pets, arguments.keys));
    let url = |path: &Path| format!("{engine}:{}", path.join("log").display());
    if !path.exists() {
        let unfinished = path.with_extension("unfinished");
        // An earlier run was interrupted.
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished).expect("the directory can be written");
        runtime.block_on(fill(&url(&unfinished), arguments));
        fs::rename(unfinished, &path).expect("the directory can be renamed");
    }
    url(&path)
}

async fn open(store: &str) -> Arc<dyn EventLog> {
    match store.split_once(':').expect("a URL") {
        ("s3", _) => Arc::new(Gateway::shared().open(store).await),
        (engine, path) => open_embedded(engine, Path::new(path)),
    }
}

async fn fill(store: &str, arguments: &Arguments) {
    let log = open(store).await;
    let commits = (arguments.pets / arguments.per_commit).cast_unsigned();
    let entry = |id| entry(id, arguments.pets - arguments.keys);
    let records = history(commits, arguments.per_commit, entry);
    if store.starts_with("s3:") {
        append_in_batches(&*log, records).await;
    } else {
        contract::append_all(&*log, records).await;
    }
    log.close().await;
}

fn entry(id: i64, keys_after: i64) -> Entry {
    let details = NewPet { category_id: CategoryId(id % 100), ..numbered(id.cast_unsigned()) };
    let key = (id > keys_after).then(|| format!("018f3c5e-7a1b-7c2d-9e3f-{id:012}"));
    Entry {
        event: added(id, details),
        by: OwnerId("k4f1d02ab9c7e".into()),
        request_key: key.map(|key| RequestKey::new(key).expect("a valid key")),
    }
}

struct Started {
    ready: Duration,
    cpu: Duration,
    /// In bytes.
    memory: f64,
}

fn start(program: &Path, store: &str, is_killed_next: bool) -> Started {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut app = App::stopped_on(program, store, directory, &["--admin-listen", "127.0.0.1:0"]);
    if store.starts_with("s3:") {
        app.run_by(&Gateway::shared().wrapper());
    }
    let begun = Instant::now();
    app.begin();
    if let Err(ended) = app.wait_until_listening() {
        panic!("the service ended with {:?}: {}", ended.code, ended.stderr);
    }
    while app.anonymous("GET", "/readyz").try_send().is_none_or(|response| response.status != 200) {
        thread::sleep(Duration::from_millis(5));
    }
    let ready = begun.elapsed();
    let about = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", app.pid())).expect("it runs");
    let status = about("status");
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has one");
    let kilobytes: f64 = kilobytes.trim().trim_end_matches(" kB").parse().expect("a number");
    let stat = about("stat");
    // User and system time, in hundredths of a second.
    let ticks = stat.rsplit(") ").next().expect("the name ends").split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    // The next start follows.
    if is_killed_next {
        app.kill();
    } else {
        app.terminate();
    }
    Started { ready, cpu: Duration::from_millis(10 * ticks), memory: kilobytes * 1024.0 }
}
