//! How fast `log copy` fills each engine, and how far `log copy --follow` is behind a service that stores a fixed number
//! of commits per second.
//!
//! `cargo bench --package tests --bench copies` starts the servers it needs. `-- --rate 700 --engines postgres` chooses the rate
//! and the targets. `--program FILE`, given once for each build, compares builds in one run. Machines are noisy: compare
//! rows of one run, not numbers of two.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use harness::{
    App, Connection, Gateway, NatsCluster, NatsSync, PostgresServer, REX, create_head, fill_embedded,
    key_file, packaged_program, signal,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[derive(Parser)]
struct Arguments {
    /// The engines to copy into.
    #[arg(long, value_delimiter = ',', default_value = "sled,sqlite,postgres,nats,s3")]
    engines: Vec<String>,
    /// How many commits are copied at once, with one pet each.
    #[arg(long, default_value_t = 20_000)]
    commits: u64,
    /// How many commits per second the service stores while its log is followed.
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// How long it does.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// The builds to measure instead of the release build of these sources.
    #[arg(long)]
    program: Vec<PathBuf>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The targets of the copies, and their servers.
struct Targets {
    directory: TempDir,
    postgres: PostgresServer,
    nats: NatsCluster,
    created: usize,
}

impl Targets {
    /// The URL of an empty log.
    fn fresh(&mut self, engine: &str) -> String {
        self.created += 1;
        match engine {
            "postgres" => {
                let database = self.postgres.create_database();
                self.postgres.url(&database)
            }
            "s3" => Gateway::shared().url(),
            "nats" => self.nats.url(&format!("COPY{}", self.created)),
            embedded => {
                format!("{embedded}:{}", self.directory.path().join(self.created.to_string()).display())
            }
        }
    }
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.program.is_empty() {
        arguments.program.push(packaged_program().to_owned());
    }
    let runtime = Runtime::new().expect("a runtime");
    let mut targets = Targets {
        directory: TempDir::new().expect("a temporary directory"),
        postgres: PostgresServer::start(),
        nats: runtime.block_on(NatsCluster::start(1, NatsSync::Always)),
        created: 0,
    };
    let from = targets.fresh("sled");
    fill_embedded(&from, arguments.commits);
    println!(
        "| target | build | log copy, commits/s | followed commits/s | behind, median, s | behind, most, s |"
    );
    println!("|---|---|--:|--:|--:|--:|");
    for engine in &arguments.engines {
        for program in &arguments.program {
            let copy = |from: &str, to: &str| {
                let mut copy = Command::new(program);
                if engine == "s3" {
                    copy.envs(Gateway::shared().variables());
                }
                copy.args(["log", "copy", "--from", from, "--to", to]);
                copy
            };
            let copied = f64::from(u32::try_from(arguments.commits).expect("a few commits"))
                / copy_time(copy(&from, &targets.fresh(engine))).as_secs_f64();
            let to = targets.fresh(engine);
            let (rate, mut behind) =
                follow(program, |from| copy(from, &to), arguments.rate, arguments.seconds);
            behind.sort_unstable();
            println!(
                "| {engine} | {} | {copied:.0} | {rate:.0} | {:.2} | {:.2} |",
                program.display(),
                behind[behind.len() / 2].as_secs_f64(),
                behind[behind.len() - 1].as_secs_f64()
            );
        }
    }
}

fn copy_time(mut copy: Command) -> Duration {
    let begun = Instant::now();
    let status = copy.stdout(Stdio::null()).status();
    assert!(status.expect("the program starts").success());
    begun.elapsed()
}

/// Follows a service that stores so many commits per second. Returns the rate that it has reached, and at each report of
/// the copy the age of the oldest commit that was missing.
fn follow(program: &Path, copy: impl Fn(&str) -> Command, rate: u32, seconds: u32) -> (f64, Vec<Duration>) {
    let directory = TempDir::new().expect("a temporary directory");
    let store = format!("sled:{}", directory.path().join("log").display());
    let app = App::start_on(program, &store, directory, &["--admin-listen", "127.0.0.1:0"]);
    let key = key_file(app.directory(), &app.log_key());
    let mut copy = copy(&format!("http://{}", app.admin()))
        .args(["--follow", "--report-every", "100ms"])
        .arg("--api-key-file")
        .arg(key)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines =
        BufReader::new(copy.stdout.take().expect("its output is a pipe")).lines().map_while(Result::ok);
    assert!(lines.next().is_some_and(|line| line.starts_with("following")), "the copy follows the service");
    // The copy ends when the service has stored everything, and so do its reports.
    let reports =
        thread::spawn(move || lines.filter_map(|line| Some((Instant::now(), position(&line)?))).collect());
    let stored = create(&app, rate, seconds);
    signal(copy.id(), "TERM");
    assert!(copy.wait().expect("the copy ends").success());
    let reports: Vec<(Instant, usize)> = reports.join().expect("every report is text");
    let behind = reports.into_iter().map(|(at, position)| {
        // Commit 1 is the first of `stored`.
        stored.get(position).map_or(Duration::ZERO, |missing| at.saturating_duration_since(*missing))
    });
    let elapsed = stored[stored.len() - 1] - stored[0];
    let rate = f64::from(u32::try_from(stored.len()).expect("a few commits")) / elapsed.as_secs_f64();
    (rate, behind.collect())
}

/// The position in a report of the copy.
fn position(line: &str) -> Option<usize> {
    line.split_once("the copy is at position ")?.1.parse().ok()
}

/// Creates pets one after the other, each in its own commit. Returns when each was stored.
fn create(app: &App, rate: u32, seconds: u32) -> Vec<Instant> {
    let request = format!("{}{REX}", create_head(&app.key, REX.len()));
    let mut connection = Connection::open(app.address(), &app.key);
    let begun = Instant::now();
    let due = |number: u32| begun + Duration::from_secs(number.into()) / rate;
    let stored = (0..rate * seconds).map(|number| {
        thread::sleep(due(number).saturating_duration_since(Instant::now()));
        let response = connection.send(request.as_bytes()).expect("the connection stays open");
        assert_eq!(response.status, 201);
        Instant::now()
    });
    stored.collect()
}
