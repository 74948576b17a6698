//! How long a start takes after a clean stop and after `kill -9`, and how much memory a node needs per pet. Every start
//! replays the whole log.
//!
//! `cargo bench --package tests --bench start -- --pets 10000000 --directory target/ten-million` fills a store for each engine, or
//! uses the one that an earlier run has left in the directory, and starts the service on it. Only ratios between runs on the same
//! machine mean something.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use application::{
    OwnerId, RequestKey,
    log::{commit::Entry, contract},
};
use clap::Parser;
use domain::{
    CategoryId, NewPet,
    test_values::{added, numbered},
};
use harness::{App, history, open_embedded, packaged_program};
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
    /// The build to start instead of the release build of these sources.
    #[arg(long)]
    program: Option<PathBuf>,
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
    let program = arguments.program.as_deref().unwrap_or_else(|| packaged_program());
    println!(
        "{:<8} {:<18} {:>10} {:>9} {:>9} {:>8} {:>9} {:>14}",
        "engine", "start", "pets", "open, s", "ready, s", "CPU, s", "RSS, MB", "RSS/pet, bytes"
    );
    let runtime = Runtime::new().expect("a runtime");
    for engine in &arguments.engines {
        let path = directory.join(format!("{engine}-{}-{}", arguments.pets, arguments.keys));
        if !path.exists() {
            fill(engine, &path, &arguments);
        }
        for _ in 0..arguments.rounds {
            for (kind, is_killed_next) in [("after a clean stop", true), ("after kill -9", false)] {
                // Opening the log itself also closes it properly: the time that is the engine's own.
                let begun = Instant::now();
                runtime.block_on(async { open_embedded(engine, &path.join("log")).close().await });
                let opening = begun.elapsed();
                let started = start(program, engine, &path, is_killed_next);
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

fn fill(engine: &str, path: &Path, arguments: &Arguments) {
    let unfinished = path.with_extension("unfinished");
    // An earlier run was interrupted.
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished).expect("the directory can be written");
    let runtime = Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let log = open_embedded(engine, &unfinished.join("log"));
    let commits = (arguments.pets / arguments.per_commit).cast_unsigned();
    let entry = |id| entry(id, arguments.pets - arguments.keys);
    runtime.block_on(async {
        contract::append_all(&*log, history(commits, arguments.per_commit, entry)).await;
        log.close().await;
    });
    fs::rename(unfinished, path).expect("the directory can be renamed");
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

fn start(program: &Path, engine: &str, path: &Path, is_killed_next: bool) -> Started {
    let log = path.join("log");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("{engine}:{}", log.display());
    let mut app = App::stopped_on(program, &store, directory, &["--admin-listen", "127.0.0.1:0"]);
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
