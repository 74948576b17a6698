//! How much several nodes on one log write, how often their appends conflict, and how long a client waits, compared with
//! one node in the same run: one node, four nodes that share the load in different ways, and a node that is far away.
//!
//! `cargo bench --package tests --bench nodes` starts the servers that it needs. Machines are noisy: compare rows of one
//! run, not numbers of two.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use harness::{
    App, DelayProxy, Gateway, NatsCluster, NatsSync, PostgresServer, REX, create_head, packaged_program,
    wrapper,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time,
};

const CONNECTIONS: usize = 16;
/// The time between two creates of a node with little load.
const LIGHT_INTERVAL: Duration = Duration::from_millis(200);
/// How long a byte takes between the distant node and the engine: an append takes about 20 times as long as on the
/// other nodes.
const DISTANCE: Duration = Duration::from_millis(10);
const WARM_UP: Duration = Duration::from_secs(2);
/// The nodes find out within five seconds that one of them is far away.
const WARM_UP_WITH_FAR: Duration = Duration::from_secs(15);
const ROUND: Duration = Duration::from_secs(3);

#[derive(Parser)]
struct Arguments {
    /// How often each row is measured, interleaved with the others.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The builds to compare, instead of the release build of these sources.
    #[arg(long)]
    program: Vec<PathBuf>,
    /// The engines to measure, instead of all.
    #[arg(long)]
    engine: Vec<Engine>,
    /// How much longer each request to object storage takes, in milliseconds. Several values are measured in one run.
    #[arg(long, default_value = "0")]
    delay: Vec<u32>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    Postgres,
    Jetstream,
    S3,
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

/// The nodes of one program on one engine, and what was measured of them.
struct Cluster {
    engine: String,
    program: PathBuf,
    nodes: [Vec<App>; 3],
    /// One list of rounds per row.
    measured: [Vec<Measured>; ROWS.len()],
    _proxies: Vec<DelayProxy>,
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
    let Arguments { rounds, mut program, engine, delay, .. } = Arguments::parse();
    if program.is_empty() {
        program.push(packaged_program().to_owned());
    }
    let is_measured = |name| engine.is_empty() || engine.contains(&name);
    let mut postgres = is_measured(Engine::Postgres).then(PostgresServer::start);
    let jetstream = if is_measured(Engine::Jetstream) {
        Some(NatsCluster::start(3, NatsSync::Always).await)
    } else {
        None
    };
    let gateway = is_measured(Engine::S3).then(Gateway::shared);
    let mut clusters = Vec::new();
    for (number, program) in program.iter().enumerate() {
        if let Some(postgres) = &mut postgres {
            let proxy = DelayProxy::start(postgres.address(), DISTANCE).await;
            let [one, four, with_far] = [(); 3].map(|()| postgres.create_database());
            let (near, distant) = (postgres.address().to_string(), proxy.address().to_string());
            let far = postgres.url(&with_far).replace(&near, &distant);
            let urls = [one, four, with_far].map(|database| postgres.url(&database));
            let place = |url: &str| Place { url: url.to_owned(), wrapper: vec![] };
            let groups = groups(urls.each_ref().map(|url| place(url)), place(&far));
            clusters.push(Cluster::new("PostgreSQL".into(), program, &groups, vec![proxy]));
        }
        if let Some(jetstream) = &jetstream {
            let proxy = DelayProxy::start(jetstream.servers[0].address(), DISTANCE).await;
            let stream = |name: &str| format!("{name}{number}");
            let place = |url: String| Place { url, wrapper: vec![] };
            let urls = ["ONE", "FOUR", "FAR"].map(|name| place(jetstream.url(&stream(name))));
            let far = place(format!("nats://{}/{}", proxy.address(), stream("FAR")));
            let name = "JetStream, sync always".into();
            clusters.push(Cluster::new(name, program, &groups(urls, far), vec![proxy]));
        }
        if let Some(gateway) = gateway {
            for delay in &delay {
                // Half of the time in each direction.
                let added = Duration::from_millis((*delay).into()) / 2;
                let near = DelayProxy::start(gateway.address(), added).await;
                let distant = DelayProxy::start(gateway.address(), added + DISTANCE).await;
                let place = |url: &String, proxy: &DelayProxy| {
                    let endpoint = format!("http://{}", proxy.address());
                    Place { url: url.clone(), wrapper: wrapper(&gateway.variables_via(&endpoint)) }
                };
                let urls = [(); 3].map(|()| gateway.log());
                let groups = groups(urls.each_ref().map(|url| place(url, &near)), place(&urls[2], &distant));
                let name = format!("Object storage (Ceph), each request {delay} ms longer");
                clusters.push(Cluster::new(name, program, &groups, vec![near, distant]));
            }
        }
    }
    for _ in 0..rounds {
        for row in 0..ROWS.len() {
            for cluster in &mut clusters {
                cluster.measure(row).await;
            }
        }
    }
    println!(
        "\nover HTTP, {CONNECTIONS} connections per busy node; servers, nodes and clients on this machine; medians of \
         {rounds} interleaved rounds of {} s, and the ratios of each round\n",
        ROUND.as_secs()
    );
    for cluster in &clusters {
        cluster.print();
    }
}

/// How a node reaches its log.
#[derive(Clone)]
struct Place {
    url: String,
    /// Sets the variables of the node.
    wrapper: Vec<String>,
}

/// The places of the nodes of [`Nodes`], of which the last one is far away.
fn groups([one, four, with_far]: [Place; 3], far: Place) -> [Vec<Place>; 3] {
    [vec![one], vec![four; 4], vec![with_far.clone(), with_far.clone(), with_far, far]]
}

impl Cluster {
    fn new(engine: String, program: &Path, groups: &[Vec<Place>; 3], proxies: Vec<DelayProxy>) -> Self {
        let start = |group: &Vec<Place>| group.iter().map(|place| start(program, place)).collect::<Vec<_>>();
        let nodes = tokio::task::block_in_place(|| groups.each_ref().map(start));
        Self { engine, program: program.to_owned(), nodes, measured: Default::default(), _proxies: proxies }
    }

    async fn measure(&mut self, row: usize) {
        let (_, which, loads) = ROWS[row];
        let nodes = &self.nodes[which as usize];
        let warm_up = match which {
            Nodes::One | Nodes::Four => WARM_UP,
            Nodes::FourWithOneFar => WARM_UP_WITH_FAR,
        };
        let begun = Instant::now() + warm_up;
        let mut clients = JoinSet::new();
        for (index, (node, load)) in nodes.iter().zip(loads).enumerate() {
            let (connections, interval) = match load {
                Load::Idle => continue,
                Load::Light => (1, LIGHT_INTERVAL),
                Load::Busy => (CONNECTIONS, Duration::ZERO),
            };
            for _ in 0..connections {
                let (address, key) = (node.address(), node.key.clone());
                clients.spawn(async move { (index, create(address, &key, begun, interval).await) });
            }
        }
        time::sleep_until(begun.into()).await;
        let before: Vec<_> = nodes.iter().map(Counts::of).collect();
        let mut latencies = vec![Vec::new(); nodes.len()];
        let mut errors = 0;
        for (index, (measured, failed)) in clients.join_all().await {
            latencies[index].extend(measured);
            errors += failed;
        }
        let elapsed = begun.elapsed();
        let counts: Vec<_> =
            nodes.iter().zip(before).map(|(node, before)| Counts::of(node) - before).collect();
        let created: usize = latencies.iter().map(Vec::len).sum();
        let last = &latencies[nodes.len() - 1];
        let far = usize::from(which == Nodes::FourWithOneFar);
        let busy = loads[..loads.len() - far].iter().filter(|load| **load == Load::Busy).count();
        let slowest = latencies[..busy].iter().map(Vec::len).min().unwrap_or_default();
        let same = latencies[..busy].concat();
        let total = |count: fn(&Counts) -> u64| counts.iter().map(count).sum();
        self.measured[row].push(Measured {
            rate: ratio(created as u64, 1) / elapsed.as_secs_f64(),
            least_share: ratio((slowest * busy) as u64, same.len() as u64),
            p50: percentile(&same, 50),
            p99: percentile(&same, 99),
            errors: ratio(errors, 1),
            conflicts: ratio(total(|of| of.conflicts), total(|of| of.appends)),
            last_commits: ratio(counts[nodes.len() - 1].commits, 1) / elapsed.as_secs_f64(),
            last_p99: percentile(last, 99),
        });
    }

    fn print(&self) {
        println!("{}, {}\n", self.engine, self.program.display());
        println!(
            "| nodes | creates/s | / one node | slowest node's share | conflicting appends | errors | p50, ms | p99, ms | / one node | last node: commits/s | p99, ms |"
        );
        println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
        let of = |row: usize, value: fn(&Measured) -> f64| {
            self.measured[row].iter().map(value).collect::<Vec<_>>()
        };
        for (row, (name, ..)) in ROWS.iter().enumerate() {
            let each = |value: fn(&Measured) -> f64| {
                let each: Vec<_> = of(row, value).iter().map(|value| format!("{value:.0}")).collect();
                format!("{:.0} ({})", median(&of(row, value)), each.join(" "))
            };
            let relative = |value: fn(&Measured) -> f64| {
                let ratios =
                    of(row, value).iter().zip(of(0, value)).map(|(this, one)| this / one).collect::<Vec<_>>();
                let each: Vec<_> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
                format!("{:.2} ({})", median(&ratios), each.join(" "))
            };
            println!(
                "| {name} | {} | {} | {} % | {} % | {:.0} | {:.1} | {:.1} | {} | {:.1} | {:.0} |",
                each(|of| of.rate),
                relative(|of| of.rate),
                each(|of| 100.0 * of.least_share),
                each(|of| 100.0 * of.conflicts),
                of(row, |of| of.errors).iter().sum::<f64>(),
                median(&of(row, |of| of.p50)),
                median(&of(row, |of| of.p99)),
                relative(|of| of.p99),
                median(&of(row, |of| of.last_commits)),
                median(&of(row, |of| of.last_p99)),
            );
        }
        println!();
    }
}

fn start(program: &Path, place: &Place) -> App {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut app = App::stopped_on(program, &place.url, directory, &["--admin-listen", "127.0.0.1:0"]);
    app.run_by(&place.wrapper);
    app.start_again();
    app
}

/// Creates pets on one connection. Returns the latencies after the warm-up, and how many creates failed.
async fn create(address: SocketAddr, key: &str, begun: Instant, interval: Duration) -> (Vec<Duration>, u64) {
    let request = format!("{}{REX}", create_head(key, REX.len()));
    let mut connection = TcpStream::connect(address).await.expect("the node accepts a connection");
    connection.set_nodelay(true).expect("a socket has options");
    let (mut latencies, mut errors) = (Vec::new(), 0);
    // The warm-up ends at `begun`.
    while Instant::now() < begun + ROUND {
        let sent = Instant::now();
        connection.write_all(request.as_bytes()).await.expect("the connection stays open");
        let status = read_status(&mut connection).await;
        match status {
            201 if Instant::now() > begun => latencies.push(sent.elapsed()),
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

/// The counters of a node.
struct Counts {
    appends: u64,
    conflicts: u64,
    commits: u64,
}

impl Counts {
    fn of(node: &App) -> Self {
        let metrics = node.metrics();
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).expect("a counter")
        };
        Self {
            appends: value("petstore_log_append_duration_seconds_count"),
            conflicts: value("petstore_log_conflicts_total"),
            commits: value("petstore_commit_events_count"),
        }
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            appends: self.appends - before.appends,
            conflicts: self.conflicts - before.conflicts,
            commits: self.commits - before.commits,
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
