//! kill -9 at random moments, again and again on one store.

use std::{sync::Arc, thread, time::Duration};

use harness::{App, petstore, program};

use super::{
    engine::Engine,
    ledger::Ledger,
    load::Load,
    scenario::{Scenario, Tally},
};

const WRITERS: u64 = 8;
/// How long the service may live under load: from not at all to some hundred commits.
const LIFE_MAX: Duration = Duration::from_millis(200);
/// How long a start may take before it is killed too: about as long as starts take.
const START_MAX: Duration = Duration::from_millis(40);
/// Every so many rounds the service is killed while it starts.
const INTERRUPTED_STARTS: u64 = 4;

#[test]
fn a_kill_at_any_moment_loses_nothing_and_invents_nothing() {
    kill_again_and_again(Engine::chosen(), Scenario::begin("kills", 24, 1_000));
}

#[test]
fn a_kill_at_any_moment_loses_nothing_with_sqlite_either() {
    kill_again_and_again(Engine::Sqlite, Scenario::begin("sqlite kills", 8, 200));
}

fn kill_again_and_again(engine: Engine, mut scenario: Scenario) {
    let mut tally = Tally::default();
    let mut dice = scenario.dice(0);
    let ledger = Arc::new(Ledger::default());
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = engine.url(&directory.path().join("log"));
    let mut app = App::start_on(program(), &store, directory, &[]);
    while tally.rounds < scenario.rounds {
        let load = Load::start(&app, &ledger, tally.rounds, WRITERS);
        thread::sleep(dice.moment(LIFE_MAX));
        app.kill();
        load.stop();
        tally.rounds += 1;
        if tally.rounds.is_multiple_of(INTERRUPTED_STARTS) {
            app.begin();
            thread::sleep(dice.moment(START_MAX));
            app.kill();
            tally.rounds += 1;
        }
        ledger.start_and_settle(&mut app, &mut tally);
        scenario.check(&tally);
    }
    app.kill();
    petstore(["log", "verify", "--store", app.store()]).exits_with(0);
    scenario.end(&tally);
}
