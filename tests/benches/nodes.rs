//! How much several nodes on one log write, how often their appends conflict, and how long a client waits, compared with
//! one node in the same run: one node, four nodes that share the load in different ways, and a node that is far away.
//!
//! `cargo bench --package tests --bench nodes` starts the servers that it needs. With `-- --table` it prints the table of
//! `docs/performance.md`: one and four nodes on each engine, with 0, 30 and 100 ms added. Machines are noisy: compare rows
//! of one run, not numbers of two.

use std::{
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use harness::{
    App, DelayProxy, Gateway, NatsCluster, NatsSync, PACKAGED, PostgresServer, REX, built, create_head,
    value_of, wrapper,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::{self, JoinSet},
    time,
};

/// The time between two creates of a node with little load.
const LIGHT_INTERVAL: Duration = Duration::from_millis(200);
/// How long a byte takes between the distant node and the engine, in addition: an append takes about 20 times as long as on
/// the other nodes.
const DISTANCE: Duration = Duration::from_millis(10);
const WARM_UP: Duration = Duration::from_secs(2);
/// The nodes find out within five seconds that one of them is far away.
const WARM_UP_WITH_FAR: Duration = Duration::from_secs(15);
const ROUND: Duration = Duration::from_secs(3);
/// How many times the added time the warm-up and the round take longer, so that every node has several turns.
const LONGER: [u32; 2] = [30, 100];

#[derive(Parser)]
struct Arguments {
    /// One row for each engine and delay: one node, and four nodes. Sets --delay to 0,30,100.
    #[arg(long)]
    table: bool,
    /// How often each row is measured, interleaved with the others.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The number of connections to each busy node.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// The builds to compare, instead of the packaged build of these sources.
    #[arg(long)]
    program: Vec<PathBuf>,
    /// The engines to measure.
    #[arg(long, value_delimiter = ',', default_value = "postgres,jetstream,s3")]
    engine: Vec<Engine>,
    /// How much longer each request to the engine takes, in milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "0", default_value_if("table", "true", "0,30,100"))]
    delay: Vec<u64>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Postgres,
    Jetstream,
    S3,
}

/// The running server of an engine.
enum Server {
    Postgres(PostgresServer),
    /// Three servers, and how many logs they hold.
    Jetstream(NatsCluster, usize),
    S3(&'static Gateway),
}

/// The load of one node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Idle,
    /// Five creates per second.
    Light,
    /// Every connection sends its next create when it has the response to the last one.
    Busy,
}

/// The nodes of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nodes {
    One,
    Four,
    /// Four nodes, of which the last is far away.
    FourWithOneFar,
}

const ROWS: [(&str, Nodes, &[Load]); 5] = [
    ("one node", Nodes::One, &[Load::Busy]),
    ("four nodes", Nodes::Four, &[Load::Busy; 4]),
    ("one busy, three idle", Nodes::Four, &[Load::Busy, Load::Idle, Load::Idle, Load::Idle]),
    ("one busy, three with 5/s", Nodes::Four, &[Load::Busy, Load::Light, Load::Light, Load::Light]),
    ("four nodes, the last far away", Nodes::FourWithOneFar, &[Load::Busy; 4]),
];
/// How many of them are in the table.
const TABLE_ROWS: usize = 2;

/// The nodes of one program on one engine, and what was measured of them.
struct Cluster {
    program: PathBuf,
    /// Those of each of [`Nodes`] that are needed.
    nodes: Vec<Vec<App>>,
    connections: usize,
    /// One list of rounds per row.
    measured: Vec<Vec<Measured>>,
}

struct Measured {
    /// Of all nodes.
    rate: f64,
    /// The rate of the slowest node, relative to the mean of the nodes with the same load and distance.
    least_share: f64,
    /// Of those nodes, in milliseconds.
    p50: f64,
    p99: f64,
    conflicts: f64,
    errors: f64,
    /// The commits per second and the p99 of the last node.
    last_commits: f64,
    last_p99: f64,
}

#[tokio::main]
async fn main() {
    let Arguments { table, rounds, connections, mut program, engine, delay, .. } = Arguments::parse();
    if program.is_empty() {
        program.push(built(PACKAGED));
    }
    println!(
        "Creates over HTTP, {connections} connections per busy node; servers, nodes and clients on this machine; medians of \
         {rounds} interleaved rounds of {} s and {} times the added time. A ratio is that of the medians (and those of the \
         rounds).\n",
        ROUND.as_secs(),
        LONGER[1]
    );
    if table {
        println!(
            "| engine | added, ms | one node: creates/s | p99, ms | four nodes: creates/s | / one node | slowest node's share | conflicts | p99, ms |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
        );
    }
    let rows = if table { TABLE_ROWS } else { ROWS.len() };
    for engine in engine {
        let mut server = Server::start(engine).await;
        for delay in &delay {
            // Half of the time in each direction.
            let added = Duration::from_millis(*delay);
            let near = DelayProxy::start(server.address(), added / 2).await;
            let far = DelayProxy::start(server.address(), added / 2 + DISTANCE).await;
            let near = if added.is_zero() { server.address() } else { near.address() };
            let mut clusters: Vec<_> = program
                .iter()
                .map(|program| Cluster::start(program, &mut server, [near, far.address()], rows, connections))
                .collect();
            for _ in 0..rounds {
                for row in 0..rows {
                    for cluster in &mut clusters {
                        cluster.measure(row, added).await;
                    }
                }
            }
            for cluster in &clusters {
                if table {
                    cluster.print_row(server.name(), *delay);
                } else {
                    println!("{}, {delay} ms added, {}\n", server.name(), cluster.program.display());
                    cluster.print();
                }
            }
        }
    }
}

impl Server {
    async fn start(engine: Engine) -> Self {
        match engine {
            Engine::Postgres => Self::Postgres(PostgresServer::start()),
            Engine::Jetstream => Self::Jetstream(NatsCluster::start(3, NatsSync::Always).await, 0),
            Engine::S3 => Self::S3(Gateway::shared()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::Jetstream(..) => "JetStream, sync always",
            Self::S3(_) => "object storage (Ceph)",
        }
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Postgres(server) => server.address(),
            Self::Jetstream(cluster, _) => cluster.servers[0].address(),
            Self::S3(gateway) => gateway.address(),
        }
    }

    /// The URL of a new log.
    fn log(&mut self) -> String {
        match self {
            Self::Postgres(server) => {
                let database = server.create_database();
                server.url(&database)
            }
            Self::Jetstream(cluster, logs) => {
                *logs += 1;
                format!("nats://{}/LOG{logs}", cluster.servers[0].address())
            }
            Self::S3(gateway) => gateway.log(),
        }
    }

    /// Starts a node on this log, which reaches the server at this address.
    fn start_node(&self, program: &Path, log: &str, address: SocketAddr) -> App {
        let store = log.replace(&self.address().to_string(), &address.to_string());
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut app = App::stopped_on(program, &store, directory, &["--admin-listen", "127.0.0.1:0"]);
        if let Self::S3(gateway) = self {
            app.run_by(&wrapper(&gateway.variables_via(&format!("http://{address}"))));
        }
        app.start_again();
        app
    }
}

impl Cluster {
    /// Starts the nodes that these rows need, near the server and far from it.
    fn start(
        program: &Path,
        server: &mut Server,
        [near, far]: [SocketAddr; 2],
        rows: usize,
        connections: usize,
    ) -> Self {
        let groups = [vec![near], vec![near; 4], vec![near, near, near, far]];
        let needed = ROWS[rows - 1].1 as usize + 1;
        let mut start = |group: &Vec<SocketAddr>| {
            let log = server.log();
            group.iter().map(|address| server.start_node(program, &log, *address)).collect()
        };
        let nodes = task::block_in_place(|| groups[..needed].iter().map(&mut start).collect());
        let measured = ROWS.map(|_| vec![]).into();
        Self { program: program.to_owned(), nodes, connections, measured }
    }

    async fn measure(&mut self, row: usize, added: Duration) {
        let (_, which, loads) = ROWS[row];
        let nodes = &self.nodes[which as usize];
        let warm_up = match which {
            Nodes::One | Nodes::Four => WARM_UP,
            Nodes::FourWithOneFar => WARM_UP_WITH_FAR,
        };
        let begun = Instant::now() + warm_up + LONGER[0] * added;
        let period = begun..begun + ROUND + LONGER[1] * added;
        let mut clients = JoinSet::new();
        for (index, (node, load)) in nodes.iter().zip(loads).enumerate() {
            let (connections, interval) = match load {
                Load::Idle => continue,
                Load::Light => (1, LIGHT_INTERVAL),
                Load::Busy => (self.connections, Duration::ZERO),
            };
            for _ in 0..connections {
                let (address, key, period) = (node.address(), node.key.clone(), period.clone());
                clients.spawn(async move { (index, create(address, &key, period, interval).await) });
            }
        }
        time::sleep_until(begun.into()).await;
        let before: Vec<_> = nodes.iter().map(counts).collect();
        let mut latencies = vec![Vec::new(); nodes.len()];
        let mut errors = 0;
        for (index, (measured, failed)) in clients.join_all().await {
            latencies[index].extend(measured);
            errors += failed;
        }
        let elapsed = begun.elapsed();
        let after = nodes.iter().map(counts).zip(before);
        let counts: Vec<[f64; 3]> =
            after.map(|(after, before)| [0, 1, 2].map(|which| after[which] - before[which])).collect();
        let created: usize = latencies.iter().map(Vec::len).sum();
        let last = &latencies[nodes.len() - 1];
        let far = usize::from(which == Nodes::FourWithOneFar);
        let busy = loads[..loads.len() - far].iter().filter(|load| **load == Load::Busy).count();
        let slowest = latencies[..busy].iter().map(Vec::len).min().unwrap_or_default();
        let same = latencies[..busy].concat();
        let total = |which: usize| counts.iter().map(|of| of[which]).sum::<f64>();
        self.measured[row].push(Measured {
            rate: ratio(created as u64, 1) / elapsed.as_secs_f64(),
            least_share: ratio((slowest * busy) as u64, same.len() as u64),
            p50: percentile(&same, 50),
            p99: percentile(&same, 99),
            errors: ratio(errors, 1),
            conflicts: total(1) / total(0),
            last_commits: counts[nodes.len() - 1][2] / elapsed.as_secs_f64(),
            last_p99: percentile(last, 99),
        });
    }

    fn median(&self, row: usize, value: fn(&Measured) -> f64) -> f64 {
        let mut values: Vec<_> = self.measured[row].iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    }

    /// The row of the table.
    fn print_row(&self, engine: &str, delay: u64) {
        let rates = [0, 1].map(|row| self.median(row, |of| of.rate).round());
        println!(
            "| {engine} | {delay} | {} | {:.0} | {} | {:.2} | {:.0} % | {:.0} % | {:.0} |",
            rates[0],
            self.median(0, |of| of.p99),
            rates[1],
            rates[1] / rates[0],
            100.0 * self.median(1, |of| of.least_share),
            100.0 * self.median(1, |of| of.conflicts),
            self.median(1, |of| of.p99),
        );
    }

    fn print(&self) {
        println!(
            "| nodes | creates/s | / one node | slowest node's share | conflicting appends | errors | p50, ms | p99, ms | / one node | last node: commits/s | p99, ms |"
        );
        println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
        for (row, (name, ..)) in ROWS.iter().enumerate() {
            let median = |value| self.median(row, value);
            let each = |value: fn(&Measured) -> f64| {
                let each: Vec<_> = self.measured[row].iter().map(|of| format!("{:.0}", value(of))).collect();
                format!("{:.0} ({})", median(value), each.join(" "))
            };
            let relative = |value: fn(&Measured) -> f64| {
                let rounds = self.measured[row].iter().zip(&self.measured[0]);
                let each: Vec<_> =
                    rounds.map(|(this, one)| format!("{:.2}", value(this) / value(one))).collect();
                format!("{:.2} ({})", median(value) / self.median(0, value), each.join(" "))
            };
            println!(
                "| {name} | {} | {} | {} % | {} % | {:.0} | {:.1} | {:.1} | {} | {:.1} | {:.0} |",
                each(|of| of.rate),
                relative(|of| of.rate),
                each(|of| 100.0 * of.least_share),
                each(|of| 100.0 * of.conflicts),
                self.measured[row].iter().map(|of| of.errors).sum::<f64>(),
                median(|of| of.p50),
                median(|of| of.p99),
                relative(|of| of.p99),
                median(|of| of.last_commits),
                median(|of| of.last_p99),
            );
        }
        println!();
    }
}

/// Creates pets on one connection until the end of the period. Returns the latencies in it, and how many creates failed.
async fn create(
    address: SocketAddr,
    key: &str,
    period: Range<Instant>,
    interval: Duration,
) -> (Vec<Duration>, u64) {
    let request = format!("{}{REX}", create_head(key, REX.len()));
    let mut connection = TcpStream::connect(address).await.expect("the node accepts a connection");
    connection.set_nodelay(true).expect("a socket has options");
    let (mut latencies, mut errors) = (Vec::new(), 0);
    while Instant::now() < period.end {
        let sent = Instant::now();
        connection.write_all(request.as_bytes()).await.expect("the connection stays open");
        let status = read_status(&mut connection).await;
        match status {
            201 if Instant::now() > period.start => latencies.push(sent.elapsed()),
            201 => {}
            // A distant node may reject creates.
            _ => errors += 1,
        }
        time::sleep(interval).await;
    }
    (latencies, errors)
}

/// Reads one response with a length, and returns its status.
async fn read_status(connection: &mut TcpStream) -> u16 {
    let mut response = Vec::with_capacity(1024);
    loop {
        let count = connection.read_buf(&mut response).await.expect("the connection stays open");
        assert_ne!(count, 0, "the connection stays open");
        if let Some(response) = harness::Response::parse(&response, false) {
            return response.status;
        }
    }
}

/// In milliseconds.
fn percentile(latencies: &[Duration], percent: usize) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * percent / 100).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
}

/// The appends of a node, its conflicts and its commits.
fn counts(node: &App) -> [f64; 3] {
    let metrics = node.metrics();
    [
        "petstore_log_append_duration_seconds_count",
        "petstore_log_conflicts_total",
        "petstore_commit_events_count",
    ]
    .map(|series| value_of(series, &metrics))
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
