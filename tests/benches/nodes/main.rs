//! How much several nodes on one log write, how often their appends conflict, and how long a client waits, compared with
//! one node in the same run.
//!
//! `cargo bench --package tests --bench nodes` starts the servers it needs and prints two tables: `stores` (nodes in this
//! process, without HTTP) and `http` (the program, with connections that stay open). `-- http` prints only that table.
//! Machines are noisy: compare rows of one run, not numbers of two.

mod http;
mod stores;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use harness::packaged_program;

#[derive(Parser)]
struct Arguments {
    /// The tables to print.
    #[arg(default_values = ["stores", "http"])]
    tables: Vec<Table>,
    /// How often each row is measured, interleaved with the others.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The builds to compare in the table `http`, instead of the release build of these sources.
    #[arg(long)]
    program: Vec<PathBuf>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    Stores,
    Http,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    if arguments.tables.contains(&Table::Stores) {
        stores::run(arguments.rounds).await;
    }
    if arguments.tables.contains(&Table::Http) {
        let mut programs = arguments.program;
        if programs.is_empty() {
            programs.push(packaged_program().to_owned());
        }
        http::run(&programs, arguments.rounds).await;
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
