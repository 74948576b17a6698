//! How fast the service is relative to its peers, in one run: plain axum with a constant page of 20 pets (the ceiling), axum on
//! rusqlite, axum on PostgreSQL, and petstore on sled and on SQLite.
//!
//! `tests/benchmark` prints the table; with `--pictures docs/benchmarks` it also draws how
//! throughput and latency change with the connections and with the size of the store. `docs/benchmarks.md` explains both.
//!
//! Every figure is a ratio to the ceiling, measured right before and right after it; only ratios mean something on machines
//! that are noisy. Servers run on one core (PostgreSQL shares it), the load generator on the other.

mod contestants;
mod load;
mod peers;
mod pictures;

use std::{env, path::Path};

use contestants::{Ceiling, Contestant, Start};
use load::{Load, Measured};

const ROUNDS: usize = 9;
/// The time of a single create varies more than anything else.
const ROUNDS_ALONE: usize = 11;
const CONNECTIONS: usize = 64;
const PETS: usize = 100_000;
/// How many different pages are requested in turn.
const PAGES: usize = 997;
const MORE_CONNECTIONS: [usize; 4] = [1, 8, 64, 256];
const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Pictures show the shape of a curve, which one round tells as well.
const PICTURE_ROUNDS: usize = 1;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    List,
    ListAnother,
    Get,
    Create,
}

impl Case {
    const ALL: [Self; 4] = [Self::List, Self::ListAnother, Self::Get, Self::Create];
    const DRAWN: [Self; 3] = [Self::List, Self::Get, Self::Create];

    fn name(self) -> &'static str {
        match self {
            Self::List => "list (20, one status)",
            Self::ListAnother => "list, another page each time",
            Self::Get => "get",
            Self::Create => "create, durable",
        }
    }

    fn load(self, pets: usize, connections: usize) -> Load {
        let half = pets / 2;
        match self {
            Self::List => Load::get(format!("/v1/pets?status=available&after={half}"), connections),
            Self::ListAnother => {
                let begins = (0..PAGES).map(|page| page * pets / PAGES);
                let paths = begins.map(|after| format!("/v1/pets?status=available&after={after}"));
                Load::get_each(paths.collect(), connections)
            }
            Self::Get => Load::get(format!("/v1/pets/{half}"), connections),
            Self::Create => Load::create(connections),
        }
    }
}

/// One contestant's results in one case.
struct Row {
    name: &'static str,
    rounds: Vec<Round>,
}

#[derive(Clone, Copy)]
struct Round {
    ratio: f64,
    measured: Measured,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--serve", peer, pets, store] => peers::serve(peer, pets.parse().expect("a number of pets"), store),
        ["--pictures", directory] => {
            table();
            // Cargo runs benchmarks in the directory of their package.
            curves(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory));
        }
        [] => table(),
        _ => panic!("--pictures DIRECTORY is all there is, not {arguments:?}"),
    }
}

fn table() {
    let start = Start::new();
    let (ceiling, contestants) = start.all(PETS);
    println!("{PETS} pets, {CONNECTIONS} connections, medians of {ROUNDS} rounds (lowest to highest)\n");
    println!("| | | requests/s | / ceiling | p50 ms | p99 ms |\n|---|---|---|---|---|---|");
    let mut creates = vec![];
    for case in Case::ALL {
        let rows = measure(&ceiling, &contestants, &case.load(PETS, CONNECTIONS), ROUNDS);
        for row in &rows {
            let middle = row.median();
            let (low, high) = row.spread();
            println!(
                "| {} | {} | {:.0} | **{:.2}** ({low:.2}–{high:.2}) | {:.2} | {:.2} |",
                case.name(),
                row.name,
                middle.measured.rate,
                middle.ratio,
                middle.measured.p50,
                middle.measured.p99,
            );
        }
        if case == Case::Create {
            creates = rows.iter().map(|row| (row.name, row.median().ratio)).collect();
        }
    }
    println!();
    for (ours, our_ratio) in creates.iter().filter(|(name, _)| name.starts_with("petstore")) {
        for (peer, peer_ratio) in creates.iter().filter(|(name, _)| !name.starts_with("petstore")) {
            println!("durable creates: {ours} is {:.1} × {peer}", our_ratio / peer_ratio);
        }
    }
    println!("\n| one create at a time | p50 ms | p99 ms |\n|---|---|---|");
    for (contestant, rounds) in contestants.iter().zip(one_at_a_time(&contestants)) {
        let median = |figure: fn(&Measured) -> f64| middle(rounds.iter().map(figure));
        println!("| {} | {:.3} | {:.3} |", contestant.name, median(|m| m.p50), median(|m| m.p99));
    }
    println!(
        "\n| petstore | last page / first page | p99 of list under full write load / without |\n|---|---|---|"
    );
    for contestant in contestants.iter().filter(|contestant| contestant.name.starts_with("petstore")) {
        let (pages, stall) = relative_to_itself(contestant);
        println!("| {} | {pages:.2} | {stall:.2} |", contestant.name);
    }
}

/// What a lone caller sees, interleaved. A ratio to the ceiling would say nothing: the disk decides.
fn one_at_a_time(contestants: &[Contestant]) -> Vec<Vec<Measured>> {
    let mut rounds = vec![vec![]; contestants.len()];
    for _ in 0..ROUNDS_ALONE {
        for (contestant, rounds) in contestants.iter().zip(&mut rounds) {
            rounds.push(contestant.measure(&Load::create(1)));
        }
    }
    rounds
}

/// Throughput of the last page over that of the first, and the list's p99 while creates come in over that without.
fn relative_to_itself(contestant: &Contestant) -> (f64, f64) {
    let first = Load::get("/v1/pets".into(), CONNECTIONS);
    let last = Load::get(format!("/v1/pets?after={}", PETS - 20), CONNECTIONS);
    let rounds = (0..ROUNDS).map(|_| {
        let (early, late) = (contestant.measure(&first), contestant.measure(&last));
        let writing = contestant.begin(&Load::create(CONNECTIONS));
        let busy = contestant.measure(&first);
        writing.finish();
        (late.rate / early.rate, busy.p99 / early.p99)
    });
    let (pages, stalls): (Vec<_>, Vec<_>) = rounds.unzip();
    (middle(pages.into_iter()), middle(stalls.into_iter()))
}

/// Interleaved: ceiling, contestant, ceiling, next contestant, ceiling, and all of it again.
fn measure(ceiling: &Ceiling, contestants: &[Contestant], load: &Load, rounds: usize) -> Vec<Row> {
    let mut rows: Vec<Row> =
        contestants.iter().map(|contestant| Row { name: contestant.name, rounds: vec![] }).collect();
    for _ in 0..rounds {
        let mut before = ceiling.rate(load.connections);
        for (contestant, row) in contestants.iter().zip(&mut rows) {
            let measured = contestant.measure(load);
            let after = ceiling.rate(load.connections);
            row.rounds.push(Round { ratio: measured.rate / f64::midpoint(before, after), measured });
            before = after;
        }
    }
    rows
}

impl Row {
    fn median(&self) -> Round {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(|left, right| left.ratio.total_cmp(&right.ratio));
        rounds[rounds.len() / 2]
    }

    fn spread(&self) -> (f64, f64) {
        let ratios = self.rounds.iter().map(|round| round.ratio);
        (ratios.clone().fold(f64::INFINITY, f64::min), ratios.fold(0.0, f64::max))
    }
}

fn middle(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Draws a picture per case for the connections and for the size of the store.
fn curves(directory: &Path) {
    std::fs::create_dir_all(directory).expect("the directory for the pictures can be made");
    let start = Start::new();
    let (ceiling, contestants) = start.all(PETS);
    for case in Case::DRAWN {
        let points = MORE_CONNECTIONS.map(|connections| {
            (connections, measure(&ceiling, &contestants, &case.load(PETS, connections), PICTURE_ROUNDS))
        });
        pictures::draw(directory, case.name(), "connections", &points);
    }
    drop((ceiling, contestants));
    let sizes = SIZES.map(|pets| {
        let (ceiling, contestants) = start.all(pets);
        Case::DRAWN.map(|case| {
            (pets, measure(&ceiling, &contestants, &case.load(pets, CONNECTIONS), PICTURE_ROUNDS))
        })
    });
    for (place, case) in Case::DRAWN.into_iter().enumerate() {
        let points: Vec<_> = sizes.iter().map(|cases| &cases[place]).collect();
        pictures::draw(directory, case.name(), "pets", &points);
    }
}
