//! How long a durable create takes with few and with many callers, how many creates share a commit, and how often
//! threads have to be switched for one.
//!
//! `cargo bench --package tests --bench create -- [sled|sqlite] OLD NEW` compares programs that were built before, by their
//! paths; without any, it builds and measures this one. Rounds are interleaved, and medians printed: machines are noisy, so
//! compare lines of one run. The service runs on one core and this client on the other.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use harness::{App, packaged_program};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

const CONNECTIONS: [usize; 4] = [1, 8, 64, 256];
const ENGINES: [&str; 2] = ["sled", "sqlite"];
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1_500);
const SERVER_CORE: &str = "0";
const CLIENT_CORE: &str = "1";
const PET: &str = r#"{"name":"Rex","categoryId":7,"status":"available"}"#;

/// What one round showed.
struct Round {
    per_second: f64,
    p50: Duration,
    p99: Duration,
    /// Creates per commit.
    batch: f64,
    /// Context switches per create.
    switches: f64,
}

fn main() {
    // Cargo adds an argument.
    let (engines, programs): (Vec<_>, Vec<_>) = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .partition(|argument| ENGINES.contains(&argument.as_str()));
    let is_chosen = |engine: &&str| engines.is_empty() || engines.iter().any(|chosen| chosen == engine);
    let mut programs: Vec<_> = programs.into_iter().map(PathBuf::from).collect();
    if programs.is_empty() {
        programs.push(packaged_program().into());
    }
    pin(std::process::id(), CLIENT_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!(
        "{:<8} {:>11} {:<24} {:>10} {:>9} {:>9} {:>7} {:>9}",
        "engine", "connections", "program", "creates/s", "p50 µs", "p99 µs", "batch", "switches"
    );
    for engine in ENGINES.into_iter().filter(is_chosen) {
        let apps: Vec<_> = programs.iter().map(|program| start(program, engine)).collect();
        for connections in CONNECTIONS {
            let mut rounds: Vec<Vec<Round>> = apps.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for (app, rounds) in apps.iter().zip(&mut rounds) {
                    rounds.push(runtime.block_on(measure(app, connections)));
                }
            }
            for (program, rounds) in programs.iter().zip(&rounds) {
                let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
                println!(
                    "{engine:<8} {connections:>11} {:<24} {:>10.0} {:>9.0} {:>9.0} {:>7.1} {:>9.2}",
                    program.file_name().unwrap_or_default().to_string_lossy(),
                    of(|round| round.per_second),
                    of(|round| round.p50.as_secs_f64() * 1e6),
                    of(|round| round.p99.as_secs_f64() * 1e6),
                    of(|round| round.batch),
                    of(|round| round.switches),
                );
            }
        }
    }
}

fn start(program: &Path, engine: &str) -> App {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = format!("{engine}:{}", directory.path().join("log").display());
    let app = App::start_on(program, &store, directory, &[]);
    pin(app.pid(), SERVER_CORE);
    app
}

/// Binds a process to a core where that is possible; elsewhere the scheduler does what it likes.
fn pin(pid: u32, core: &str) {
    let pinned =
        Command::new("taskset").args(["-acp", core, &pid.to_string()]).stdout(Stdio::null()).status();
    if !pinned.is_ok_and(|status| status.success()) {
        println!("process {pid} is not pinned to core {core}: install taskset for steadier numbers");
    }
}

async fn measure(app: &App, connections: usize) -> Round {
    let request = format!(
        "POST /v1/pets HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{PET}",
        app.key,
        PET.len()
    );
    let (commits, switches) = (position(app), context_switches(app.pid()));
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..connections {
        callers.spawn(call(app.address(), request.clone(), begun));
    }
    let mut latencies: Vec<_> = callers.join_all().await.concat();
    let elapsed = begun.elapsed();
    let (commits, switches) = (position(app) - commits, context_switches(app.pid()) - switches);
    latencies.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
    let ratio = |part: u64, whole: u64| part as f64 / whole as f64;
    let creates = latencies.len() as u64;
    Round {
        per_second: ratio(creates, 1) / elapsed.as_secs_f64(),
        p50: latencies[latencies.len() / 2],
        p99: latencies[latencies.len() * 99 / 100],
        batch: ratio(creates, commits),
        switches: ratio(switches, creates),
    }
}

/// One client, which sends the next request when it has the response to the previous one.
async fn call(address: SocketAddr, request: String, begun: Instant) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.expect("the server accepts");
    stream.set_nodelay(true).expect("TCP has no delay");
    let mut latencies = Vec::new();
    let mut response = [0; 2_048];
    while begun.elapsed() < ROUND {
        let sent = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("the server listens");
        let mut length = 0;
        // The body is a pet, and nothing else in the response ends like one.
        while !response[..length].ends_with(b"\"available\"}") {
            length += match stream.read(&mut response[length..]).await {
                Ok(more @ 1..) => more,
                Ok(0) | Err(_) => panic!("no pet: {}", String::from_utf8_lossy(&response[..length])),
            };
        }
        latencies.push(sent.elapsed());
        assert!(response.starts_with(b"HTTP/1.1 201"), "a load test gets no errors");
    }
    latencies
}

/// How many commits there are.
fn position(app: &App) -> u64 {
    let response = app.get("/v1/pets?limit=1");
    let position = response.header("log-position").expect("clients with a key learn it");
    position.split('-').next().and_then(|number| number.parse().ok()).expect("a position is a number")
}

/// How often the threads of a process were switched, all together.
fn context_switches(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the program runs");
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    statuses
        .flat_map(|status| {
            let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
            lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).collect::<Vec<_>>()
        })
        .sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
