//! A disk whose sync fails once and then reports success, although the data is gone.
//!
//! This is how Linux treats a failed write: it reports the failure to one sync, keeps the page in its cache,
//! and marks it clean. A program that retries the sync, or reopens the files and trusts what it reads,
//! acknowledges data that is lost with the next power cut.

use std::{sync::Arc, thread, time::Duration};

use harness::{App, petstore, wait_until};

use super::{
    disk::Disk,
    engine::Engine,
    ledger::Ledger,
    load::{Load, create},
    scenario::{self, Scenario, Tally},
};

const WRITERS: u64 = 4;
/// Long enough for some commits, and for the disk to fail under one of them.
const LIFE: Duration = Duration::from_millis(150);
/// Creates that are tried on the failing disk, and again when it works.
const TRIES: u64 = 20;

#[test]
fn nothing_is_acknowledged_on_top_of_data_that_a_failed_sync_has_lost() {
    fail_again_and_again(Engine::chosen(), Scenario::begin("failed syncs", 4, 40));
}

#[test]
fn sqlite_acknowledges_nothing_on_top_of_data_that_a_failed_sync_has_lost() {
    fail_again_and_again(Engine::Sqlite, Scenario::begin("sqlite failed syncs", 3, 40));
}

fn fail_again_and_again(engine: Engine, mut scenario: Scenario) {
    let mut tally = Tally::default();
    let Some(disk) = scenario::available(scenario.name, Disk::new_failing()) else { return };
    let mut bench = Bench::new(engine, disk);
    while tally.rounds < scenario.rounds {
        bench.round(&mut tally);
        scenario.check(&tally);
    }
    bench.app.kill();
    petstore(["log", "verify", "--store", bench.app.store()]).exits_with(0);
    scenario.end(&tally);
}

struct Bench {
    app: App,
    disk: Disk,
    ledger: Arc<Ledger>,
}

impl Bench {
    fn new(engine: Engine, disk: Disk) -> Self {
        let store = engine.url(&disk.path().join("log"));
        let app = App::on(&store);
        Self { app, disk, ledger: Arc::default() }
    }

    /// Lets the disk fail and work again under load, then cuts the power and looks at what is left.
    fn round(&mut self, tally: &mut Tally) {
        let round = tally.rounds;
        tally.rounds += 1;
        let load = Load::start(&self.app, &self.ledger, round, WRITERS);
        thread::sleep(LIFE);
        self.disk.fail();
        let rejected = self.create(&format!("{round} failing"));
        // Every other round the process ends before it could mend anything, and leaves that to the next one.
        let ended = !round.is_multiple_of(2);
        if ended {
            self.app.kill();
        }
        self.disk.heal();
        load.stop();
        if ended && self.app.try_start_again().is_err() {
            // Its own sync reports the fault, unless an earlier one has; the sync after that compares.
            tally.count("starts rejected after the fault", 1);
            self.app.start_again();
        }
        // A disk that fails for one moment only is allowed to go unnoticed, but not to lose anything.
        tally.count("rejected on the failing disk", rejected);
        let (post, mut tries) = (self.app.call("POST", "/v1/pets"), 0_u64..);
        wait_until("writes continue without a restart", || {
            let name = format!("{round} again {}", tries.next().expect("endless"));
            create(&post, &self.ledger, &name) == Some(201)
        });
        self.create(&format!("{round} healed"));
        self.disk.cut_power();
        self.app.kill();
        self.disk.restart();
        self.ledger.start_and_settle(&mut self.app, tally);
    }

    /// Asks for some pets, and returns how many were rejected.
    fn create(&self, prefix: &str) -> u64 {
        let post = self.app.call("POST", "/v1/pets");
        let statuses = (0..TRIES).map(|count| create(&post, &self.ledger, &format!("{prefix} {count}")));
        statuses.filter(|status| *status != Some(201)).count() as u64
    }
}
