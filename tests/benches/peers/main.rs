//! Measures petstore on sled and on SQLite next to its peers: plain axum with a constant page of 20 pets (the ceiling), axum
//! on rusqlite with and without group commit, and axum on PostgreSQL. petstore appears twice: as the README builds it, like
//! the peers, and as packages have it (`dist`).
//!
//! `tests/benchmark` prints the results; with `--charts docs/benchmarks` it also draws them. `docs/performance.md` explains
//! the method. Servers share one core, PostgreSQL included; the load generator has the other.

mod charts;
mod load;
mod machine;
mod peers;
mod servers;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use clap::Parser;
use load::{Load, Measured};
use machine::StolenTime;
use mimalloc::MiMalloc;
use servers::{CEILING, GROUP_COMMIT, Server, Servers};

/// That of petstore, with the same features.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The number of connections in the overview.
const MANY: usize = 64;
/// The files that a server has open besides its connections.
const OTHER_FILES: u64 = 200;
/// A second in which the hypervisor takes more percent of the CPU time is measured again, unless this has happened
/// [`MOST_REPEATS`] times.
const MOST_STOLEN: f64 = 2.0;
const MOST_REPEATS: usize = 600;
static REPEATS: AtomicUsize = AtomicUsize::new(0);
/// How many different pages and pets the clients choose from.
const PATHS: usize = 997;

#[derive(Parser)]
struct Arguments {
    /// How often each server is measured with each number of connections.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The numbers of connections, 1 and 64 among them.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256,1024,4096")]
    connections: Vec<usize>,
    /// How many pets every store has at first.
    #[arg(long, default_value_t = 100_000)]
    pets: usize,
    /// Where to draw the charts.
    #[arg(long)]
    charts: Option<PathBuf>,
    /// Serves a peer on this store.
    #[arg(long, hide = true, num_args = 2, value_names = ["PEER", "STORE"])]
    serve: Vec<String>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

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

    fn load(self, connections: usize, pets: usize) -> Load {
        let ids = (0..PATHS).map(|number| number * pets / PATHS + 1);
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
    is_petstore: bool,
    rounds: Vec<Measured>,
}

/// A figure, with the lowest and the highest value of a round.
struct Spread {
    low: f64,
    figure: f64,
    high: f64,
}

fn main() {
    let arguments = Arguments::parse();
    match &arguments.serve[..] {
        [peer, store] => peers::serve(peer, arguments.pets, store),
        _ => run(arguments),
    }
}

fn run(Arguments { rounds, mut connections, pets, charts, .. }: Arguments) {
    println!("# Benchmark results\n");
    machine::print();
    println!(
        "\n{pets} pets. Medians of {rounds} rounds of one second, and one more for each 1,024 connections (lowest–highest)."
    );
    println!("A ratio is that of the two medians (lowest–highest of one round).");
    let open_files = machine::raise_open_files();
    connections.retain(|&count| {
        let is_possible = count as u64 + OTHER_FILES <= open_files;
        if !is_possible {
            println!(
                "{count} connections are skipped: the limit on open files is {open_files} (`ulimit -Hn`)."
            );
        }
        is_possible
    });
    let servers = Servers::start(pets);
    let results = Operation::ALL.map(|operation| {
        println!("\n## {}\n", operation.name());
        println!(
            "| connections | server | requests/s | / ceiling | p50, ms | p99, ms |\n|--:|---|--:|--:|--:|--:|"
        );
        let measure = |&connections| measure(&servers.all, operation, connections, pets, rounds);
        connections.iter().map(measure).collect::<Vec<_>>()
    });
    print_overview(&results);
    print_losses(&results);
    print_summary(&servers, &results[Operation::Create as usize], rounds);
    let repeats = REPEATS.load(Relaxed);
    println!(
        "- seconds measured again because the hypervisor took more than {MOST_STOLEN} % of them: {repeats}"
    );
    if repeats == MOST_REPEATS {
        println!("- **The machine was too busy: the last figures are those of disturbed seconds.**");
    }
    if let Some(directory) = charts {
        // Cargo runs benchmarks in the directory of their package.
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory);
        for (operation, points) in Operation::ALL.into_iter().zip(&results) {
            charts::draw(&directory, operation.name(), points);
        }
    }
}

/// Measures in turn, so that the compared figures are a few seconds apart. The ceiling serves the same page every time.
fn measure(
    servers: &[Server],
    operation: Operation,
    connections: usize,
    pets: usize,
    rounds: usize,
) -> Point {
    let page = Load::get(["/v1/pets".into()].into_iter(), connections);
    let load = operation.load(connections, pets);
    let row = |server: &Server| Row { name: server.name, is_petstore: server.is_petstore(), rounds: vec![] };
    let mut rows: Vec<Row> = servers.iter().map(row).collect();
    for _ in 0..rounds {
        for (server, row) in servers.iter().zip(&mut rows) {
            row.rounds.push(measure_once(server, if server.name == CEILING { &page } else { &load }));
        }
    }
    for row in &rows {
        let [rate, p50, p99] = [|of: &Measured| of.rate, |of: &Measured| of.p50, |of: &Measured| of.p99]
            .map(|of| row.spread(of));
        println!("| {connections} | {} | {rate} | {} | {p50} | {p99} |", row.name, row.ratio_to(&rows[0]));
    }
    Point { connections, rows }
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
fn print_overview(results: &[Vec<Point>; 3]) {
    println!("\n## Overview: requests/s with {MANY} connections (/ ceiling)\n");
    println!("| server | list | get | durable create |\n|---|--:|--:|--:|");
    let [lists, gets, creates] = results.each_ref().map(|points| rows(points, MANY));
    let figures = |rows: &[Row], index: usize| {
        format!("{:.0} ({:.2})", rows[index].rate(), rows[index].ratio_to(&rows[0]).figure)
    };
    for (index, Row { name, .. }) in lists.iter().enumerate() {
        let create = if *name == CEILING { "–".to_owned() } else { figures(creates, index) };
        println!("| {name} | {} | {} | {create} |", figures(lists, index), figures(gets, index));
    }
}

/// Prints every row of petstore in which a peer is faster. The ceiling stores nothing, and is left out.
fn print_losses(results: &[Vec<Point>; 3]) {
    println!("\n## Where petstore loses\n");
    println!("Each faster peer, with its requests/s divided by those of petstore.\n");
    println!("| operation | connections | petstore | faster |\n|---|--:|---|---|");
    for (operation, points) in Operation::ALL.into_iter().zip(results) {
        for Point { connections, rows } in points {
            let (ours, peers): (Vec<_>, Vec<_>) = rows[1..].iter().partition(|row| row.is_petstore);
            for row in ours {
                let faster = peers.iter().filter(|peer| peer.rate() > row.rate());
                let faster: Vec<_> =
                    faster.map(|peer| format!("{} {:.2} ×", peer.name, peer.rate() / row.rate())).collect();
                if !faster.is_empty() {
                    println!(
                        "| {} | {connections} | {} | {} |",
                        operation.name(),
                        row.name,
                        faster.join("; ")
                    );
                }
            }
        }
    }
}

fn print_summary(servers: &Servers, creates: &[Point], rounds: usize) {
    println!("\n## Summary\n");
    let single = &rows(creates, 1)[1..];
    let p50 = |row: &Row| row.spread(|measured| measured.p50).figure;
    let group_commit = p50(single.iter().find(|row| row.name == GROUP_COMMIT).expect("a peer"));
    for row in single.iter().filter(|row| row.is_petstore) {
        let (ours, factor) = (p50(row), p50(row) / group_commit);
        println!(
            "- {} one create at a time over the group-commit peer's time: {ours:.3} ms / {group_commit:.3} ms = {factor:.2}",
            row.name
        );
    }
    let page = |after| Load::get([format!("/v1/pets?after={after}")].into_iter(), MANY);
    for server in servers.petstores() {
        let ratio = |_| {
            let first = measure_once(server, &page(0));
            measure_once(server, &page(server.add_pet() - 20)).rate / first.rate
        };
        let pages = Spread::of((0..rounds).map(ratio).collect());
        println!("- last page / first page, requests/s: {} {pages}", server.name);
    }
}

impl Row {
    /// The median requests per second, as printed.
    fn rate(&self) -> f64 {
        let rate = self.spread(|measured| measured.rate).figure;
        if rate < 100.0 { rate } else { rate.round() }
    }

    fn spread(&self, figure: fn(&Measured) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure).collect())
    }

    /// The throughput relative to another server's, in the medians and in each round.
    fn ratio_to(&self, other: &Self) -> Spread {
        let rounds = self.rounds.iter().zip(&other.rounds);
        let figure = self.rate() / other.rate();
        Spread { figure, ..Spread::of(rounds.map(|(ours, theirs)| ours.rate / theirs.rate).collect()) }
    }
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self { low: figures[0], figure: figures[figures.len() / 2], high: figures[figures.len() - 1] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.figure {
            ..1.0 => 3,
            ..10.0 => 2,
            ..100.0 => 1,
            _ => 0,
        };
        let Self { low, figure, high } = self;
        write!(f, "{figure:.decimals$} ({low:.decimals$}–{high:.decimals$})")
    }
}
