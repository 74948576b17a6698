//! Power cuts: the file system under the store stops suddenly, and only what was synced is left.
//!
//! A kill cannot reveal a missing sync, because the kernel still writes what the process left behind. A power
//! cut can.

use std::{sync::Arc, thread, time::Duration};

use harness::{App, Chance, petstore};

use super::{
    disk::{Disk, Format},
    engine::Engine,
    ledger::Ledger,
    load::{Load, create},
    scenario::{self, Scenario, Tally},
};

const WRITERS: u64 = 8;
/// How long the service may live under load.
const LIFE_MAX: Duration = Duration::from_millis(200);
/// How soon the power goes after the first response that a store ever gave.
const FIRST_MAX: Duration = Duration::from_millis(100);
/// Room for xfs, which takes no less, and for a few thousand pets.
const DISK_MIB: u64 = 320;

#[test]
fn a_power_cut_under_load_loses_nothing_and_invents_nothing() {
    under_load(Engine::chosen(), Scenario::begin("power cuts", 16, 150));
}

#[test]
fn a_power_cut_right_after_the_first_response_ever_loses_nothing() {
    right_after_the_first_response(Engine::chosen(), Scenario::begin("first cuts", 8, 50));
}

#[test]
fn a_power_cut_loses_nothing_with_sqlite_either() {
    under_load(Engine::Sqlite, Scenario::begin("sqlite cuts", 6, 60));
    right_after_the_first_response(Engine::Sqlite, Scenario::begin("sqlite first cuts", 2, 20));
}

fn under_load(engine: Engine, scenario: Scenario) {
    on_both_disks(scenario, |bench, round| {
        // Every other round continues with the store of the round before.
        if round % 4 < 2 {
            bench.begin_new_store(engine, round);
        }
        bench.app.start_again();
        let load = Load::start(&bench.app, &bench.ledger, round, WRITERS);
        thread::sleep(bench.dice.moment(LIFE_MAX));
        bench.disk.cut_power();
        bench.app.kill();
        load.stop();
    });
}

fn right_after_the_first_response(engine: Engine, scenario: Scenario) {
    on_both_disks(scenario, |bench, round| {
        bench.begin_new_store(engine, round);
        bench.app.start_again();
        let post = bench.app.call("POST", "/v1/pets");
        assert_eq!(create(&post, &bench.ledger, "first"), Some(201));
        thread::sleep(bench.dice.moment(FIRST_MAX));
        bench.disk.cut_power();
        bench.app.kill();
    });
}

/// A service on a disk whose power can be cut.
struct Bench {
    app: App,
    disk: Disk,
    ledger: Arc<Ledger>,
    dice: Chance,
}

/// Runs rounds that end with a cut, on ext4 and xfs by turns, and settles after each.
fn on_both_disks(mut scenario: Scenario, mut until_cut: impl FnMut(&mut Bench, u64)) {
    let mut tally = Tally::default();
    let benches: Result<Vec<_>, _> =
        [Format::Ext4, Format::Xfs].map(|format| Bench::new(format, &scenario)).into_iter().collect();
    let Some(mut benches) = scenario::available(scenario.name, benches) else { return };
    let kinds = benches.len() as u64;
    for round in 0..scenario.rounds {
        let bench = &mut benches[usize::try_from(round % kinds).expect("one of two")];
        until_cut(bench, round);
        bench.disk.restart();
        tally.rounds += 1;
        bench.ledger.start_and_settle(&mut bench.app, &mut tally);
        scenario.check(&tally);
        bench.app.kill();
    }
    for bench in &benches {
        petstore(["log", "verify", "--store", bench.app.store()]).exits_with(0);
    }
    scenario.end(&tally);
}

impl Bench {
    fn new(format: Format, scenario: &Scenario) -> Result<Self, String> {
        let disk = Disk::new(format, DISK_MIB)?;
        let app = App::stopped("memory:", &[]);
        let dice = scenario.dice(format as u64);
        Ok(Self { app, disk, ledger: Arc::default(), dice })
    }

    /// The next start makes a store where nothing was, two directories deep; the one before is given up.
    fn begin_new_store(&mut self, engine: Engine, round: u64) {
        let path = self.disk.path();
        for entry in path.read_dir().expect("a mounted disk").flatten() {
            // Some file systems have a reserved directory, which must stay.
            let _ = std::fs::remove_dir_all(entry.path());
        }
        self.app.use_store(&engine.url(&path.join(format!("{round}/log"))));
        self.ledger = Arc::default();
    }
}
