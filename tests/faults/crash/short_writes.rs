//! Writes that write less than requested: once in a while, and at a limit on file sizes that allows no more.
//!
//! strace cannot do this realistically: it can only claim a short write that never happened. So here the
//! kernel really gets a shorter request, and really enforces a limit.

use std::{path::Path, process::Command, sync::Arc};

use harness::{App, petstore, wait_until};

use super::{
    engine::Engine,
    ledger::Ledger,
    load::create,
    scenario::{self, Scenario, Tally},
};

/// Creates per round: enough to be in the middle of several writes of every kind.
const CREATES: u64 = 40;

#[test]
fn a_write_that_is_cut_short_does_no_harm() {
    shorten_writes(Engine::chosen(), Scenario::begin("short writes", 6, 60));
}

#[test]
fn a_write_to_sqlite_that_is_cut_short_does_no_harm() {
    shorten_writes(Engine::Sqlite, Scenario::begin("sqlite short writes", 3, 60));
}

#[test]
fn a_limit_on_file_sizes_stops_writes_and_nothing_else() {
    limit_files(Engine::chosen(), Scenario::begin("file limits", 6, 60));
}

#[test]
fn a_limit_on_file_sizes_stops_writes_to_sqlite_and_nothing_else() {
    limit_files(Engine::Sqlite, Scenario::begin("sqlite file limits", 3, 60));
}

fn shorten_writes(engine: Engine, mut scenario: Scenario) {
    let mut tally = Tally::default();
    let mut app = App::stopped("memory:", &[]);
    let Some(library) = scenario::available(scenario.name, preloaded("short_writes.c", app.directory()))
    else {
        return;
    };
    while tally.rounds < scenario.rounds {
        tally.rounds += 1;
        let ledger = begin_new_store(&mut app, engine, tally.rounds);
        let every = tally.rounds;
        app.run_by(&["env".into(), library.clone(), format!("SHORT_WRITES={every}")]);
        app.start_again();
        let post = app.call("POST", "/v1/pets");
        for count in 0..CREATES {
            let status = create(&post, &ledger, &format!("pet {count}"));
            assert_eq!(status, Some(201), "every {every}th write is short: {:?}", app.printed());
        }
        settle(&mut app, &ledger, &mut tally);
        scenario.check(&tally);
    }
    scenario.end(&tally);
}

fn limit_files(engine: Engine, mut scenario: Scenario) {
    let limits = engine.file_limits();
    let mut tally = Tally::default();
    let mut dice = scenario.dice(0);
    let mut app = App::stopped("memory:", &[]);
    while tally.rounds < scenario.rounds {
        tally.rounds += 1;
        let ledger = begin_new_store(&mut app, engine, tally.rounds);
        let limit = dice.within(limits.start..=limits.end - 1);
        app.run_by(&["prlimit".into(), format!("--fsize={limit}:unlimited")]);
        app.start_again();
        let post = app.call("POST", "/v1/pets");
        let mut names = (0_u64..).map(|count| format!("pet {count}"));
        let mut next = || create(&post, &ledger, &names.next().expect("endless"));
        wait_until("the limit is reached", || next() == Some(503));
        assert_eq!(app.get("/v1/pets").status, 200, "reads continue");
        assert_eq!(app.probe("/livez").status, 200);
        assert_eq!(app.probe("/readyz").status, 503);
        let lifted =
            Command::new("prlimit").args([&format!("--pid={}", app.pid()), "--fsize=unlimited"]).status();
        assert!(lifted.expect("prlimit runs").success());
        wait_until("writes continue without a restart", || next() == Some(201));
        settle(&mut app, &ledger, &mut tally);
        scenario.check(&tally);
    }
    scenario.end(&tally);
}

fn begin_new_store(app: &mut App, engine: Engine, round: u64) -> Arc<Ledger> {
    app.use_store(&engine.url(&app.directory().join(round.to_string())));
    Arc::default()
}

/// Kills the service, starts it without any hindrance, and compares.
fn settle(app: &mut App, ledger: &Ledger, tally: &mut Tally) {
    app.kill();
    app.run_by(&[]);
    ledger.start_and_settle(app, tally);
    app.kill();
    petstore(["log", "verify", "--store", app.store()]).exits_with(0);
}

/// Builds the library with this source; returns the setting that loads it before the C library.
pub(crate) fn preloaded(source: &str, directory: &Path) -> Result<String, String> {
    let library = directory.join(source).with_extension("so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/crash").join(source);
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(source).output();
    let built = built.map_err(|error| format!("cc: {error}"))?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    Ok(format!("LD_PRELOAD={}", library.display()))
}
