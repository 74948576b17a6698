//! Measures petstore on sled and on SQLite next to its peers: plain axum with a constant page of 20 pets (the ceiling), axum
//! on rusqlite with and without group commit, and axum on PostgreSQL.
//!
//! `tests/benchmark` prints the results; with `--charts docs/benchmarks` it also draws them. `docs/performance.md` explains
//! the method. Servers share one core, PostgreSQL included; the load generator has the other.

mod charts;
mod load;
mod machine;
mod peers;
mod servers;

use std::{
    env, fmt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use load::{Load, Measured};
use machine::StolenTime;
use servers::{CEILING, Server, Servers};

const PETS: usize = 100_000;
/// Numbers of connections, and how many rounds are measured with each.
const CONNECTIONS: [(usize, usize); 4] = [(1, 5), (8, 5), MANY, (256, 5)];
const MANY: (usize, usize) = (64, 9);
/// A second in which the hypervisor takes more percent of the CPU time is measured again, unless this has happened
/// [`MOST_REPEATS`] times.
const MOST_STOLEN: f64 = 2.0;
const MOST_REPEATS: usize = 600;
static REPEATS: AtomicUsize = AtomicUsize::new(0);
/// How many different pages and pets the clients choose from.
const PATHS: usize = 997;

#[derive(Clone, Copy)]
enum Operation {
    List,
    Get,
    Create,
}

impl Operation {
    /// Creates come last, because they change the size of the store.
    const ALL: [Self; 3] = [Self::List, Self::Get, Self::Create];

    fn name(self) -> &'static str {
        match self {
            Self::List => "list, random pages",
            Self::Get => "get, random pets",
            Self::Create => "create, durable",
        }
    }

    fn load(self, connections: usize) -> Load {
        let ids = (0..PATHS).map(|number| number * PETS / PATHS + 1);
        match self {
            Self::List => {
                Load::get(ids.map(|id| format!("/v1/pets?status=available&after={id}")), connections)
            }
            Self::Get => Load::get(ids.map(|id| format!("/v1/pets/{id}")), connections),
            Self::Create => Load::create(connections),
        }
    }
}

/// The results of all servers with one number of connections, the ceiling first.
struct Point {
    connections: usize,
    rows: Vec<Row>,
}

/// The results of one server.
struct Row {
    name: &'static str,
    rounds: Vec<Measured>,
}

/// A median with the lowest and the highest value.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--serve", peer, pets, store] => peers::serve(peer, pets.parse().expect("a number of pets"), store),
        // Cargo runs benchmarks in the directory of their package.
        ["--charts", directory] => {
            run(Some(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory)));
        }
        [] => run(None),
        _ => panic!("expected no argument or --charts DIRECTORY, not {arguments:?}"),
    }
}

fn run(charts: Option<&Path>) {
    println!("# Benchmark results\n");
    machine::print();
    let servers = Servers::start(PETS);
    let rounds = CONNECTIONS.map(|(connections, rounds)| format!("{rounds} with {connections}"));
    println!("\n{PETS} pets. Medians of rounds of one second (lowest–highest).");
    println!("Rounds by number of connections: {}.", rounds.join(", "));
    let [lists, gets, creates] = Operation::ALL.map(|operation| measure_and_print(&servers.all, operation));
    print_overview([&lists, &gets, &creates].map(|points| rows(points, MANY.0)));
    summarize(&servers, &creates);
    let repeats = REPEATS.load(Relaxed);
    println!(
        "- seconds measured again because the hypervisor took more than {MOST_STOLEN} % of them: {repeats}"
    );
    if repeats == MOST_REPEATS {
        println!("- **The machine was too busy: the last figures are those of disturbed seconds.**");
    }
    if let Some(directory) = charts {
        for (operation, points) in Operation::ALL.into_iter().zip([lists, gets, creates]) {
            charts::draw(directory, operation.name(), &points);
        }
    }
}

fn measure_and_print(servers: &[Server], operation: Operation) -> [Point; 4] {
    println!("\n## {}\n", operation.name());
    println!(
        "| connections | server | requests/s | / ceiling | p50, ms | p99, ms |\n|--:|---|--:|--:|--:|--:|"
    );
    CONNECTIONS.map(|(connections, rounds)| {
        let rows = measure(servers, operation, connections, rounds);
        for row in &rows {
            let Row { name, .. } = row;
            let (rate, ratio) = (row.spread(|measured| measured.rate), row.ratio_to(&rows[0]));
            let (p50, p99) = (row.spread(|measured| measured.p50), row.spread(|measured| measured.p99));
            println!("| {connections} | {name} | {rate} | {ratio} | {p50} | {p99} |");
        }
        Point { connections, rows }
    })
}

/// Measures in turn, so that the compared figures are a few seconds apart. The ceiling serves the same page every time.
fn measure(servers: &[Server], operation: Operation, connections: usize, rounds: usize) -> Vec<Row> {
    let (page, load) = (Load::get(["/v1/pets".into()].into_iter(), connections), operation.load(connections));
    let mut rows: Vec<Row> = servers.iter().map(|server| Row { name: server.name, rounds: vec![] }).collect();
    for _ in 0..rounds {
        for (server, row) in servers.iter().zip(&mut rows) {
            row.rounds.push(measure_once(server, if server.name == CEILING { &page } else { &load }));
        }
    }
    rows
}

fn measure_once(server: &Server, load: &Load) -> Measured {
    loop {
        let stolen = StolenTime::start();
        let measured = server.measure(load);
        if stolen.percent() <= MOST_STOLEN || REPEATS.load(Relaxed) == MOST_REPEATS {
            return measured;
        }
        REPEATS.fetch_add(1, Relaxed);
    }
}

/// The rows with this number of connections, the ceiling first.
fn rows(points: &[Point], connections: usize) -> &[Row] {
    let point = points.iter().find(|point| point.connections == connections);
    &point.expect("this number of connections is measured").rows
}

/// Prints the table that `docs/performance.md` shows.
fn print_overview([lists, gets, creates]: [&[Row]; 3]) {
    println!("\n## Overview: requests/s with {} connections (/ ceiling)\n", MANY.0);
    println!("| server | list | get | durable create |\n|---|--:|--:|--:|");
    let figures = |rows: &[Row], index: usize| {
        let (rate, ratio) = (rows[index].spread(|measured| measured.rate), rows[index].ratio_to(&rows[0]));
        format!("{:.0} ({:.2})", rate.median, ratio.median)
    };
    for (index, Row { name, .. }) in lists.iter().enumerate() {
        let create = if *name == CEILING { "–".to_owned() } else { figures(creates, index) };
        println!("| {name} | {} | {} | {create} |", figures(lists, index), figures(gets, index));
    }
}

fn summarize(servers: &Servers, creates: &[Point]) {
    println!("\n## Summary\n");
    let (ours, peers): (Vec<&Row>, Vec<&Row>) =
        rows(creates, MANY.0)[1..].iter().partition(|row| row.name.starts_with("petstore"));
    for ours in ours {
        for peer in &peers {
            println!("- durable creates: {} is {} × {}", ours.name, ours.ratio_to(peer), peer.name);
        }
    }
    for row in &rows(creates, 1)[1..] {
        println!("- one create at a time, p50: {} {} ms", row.name, row.spread(|measured| measured.p50));
    }
    for server in servers.petstores() {
        let (pages, writes) = compare_lists(server);
        println!("- last page / first page, requests/s: {} {pages}", server.name);
        println!("- p99 of list under write load / without: {} {writes}", server.name);
    }
}

/// The throughput of the last page relative to the first, and the p99 of the first page under write load relative to the p99
/// without.
fn compare_lists(server: &Server) -> (Spread, Spread) {
    let (connections, rounds) = MANY;
    let page = |after| Load::get([format!("/v1/pets?after={after}")].into_iter(), connections);
    let rounds = (0..rounds).map(|_| {
        let (first, last) =
            (measure_once(server, &page(0)), measure_once(server, &page(server.add_pet() - 20)));
        let writes = server.begin(&Load::create(connections));
        let busy = measure_once(server, &page(0));
        writes.finish();
        (last.rate / first.rate, busy.p99 / first.p99)
    });
    let (pages, writes): (Vec<f64>, Vec<f64>) = rounds.unzip();
    (Spread::of(pages), Spread::of(writes))
}

impl Row {
    fn spread(&self, figure: fn(&Measured) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure).collect())
    }

    /// The throughput relative to another server's in the same round.
    fn ratio_to(&self, other: &Self) -> Spread {
        let rounds = self.rounds.iter().zip(&other.rounds);
        Spread::of(rounds.map(|(ours, theirs)| ours.rate / theirs.rate).collect())
    }
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self { low: figures[0], median: figures[figures.len() / 2], high: figures[figures.len() - 1] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.median {
            ..1.0 => 3,
            ..10.0 => 2,
            ..100.0 => 1,
            _ => 0,
        };
        let Self { low, median, high } = self;
        write!(f, "{median:.decimals$} ({low:.decimals$}–{high:.decimals$})")
    }
}
