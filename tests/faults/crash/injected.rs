//! System calls that fail, are interrupted or end the process, the N-th time that a thread makes them.
//!
//! Only faults that a real kernel can cause: a call that reports an error without having been made, that is
//! interrupted, or that never returns. (A call that claims success without having been made is not among
//! them: no program can survive a kernel that lies.)

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use harness::{App, wait_until};

use super::{
    engine::Engine,
    ledger::Ledger,
    load::create,
    scenario::{self, Scenario, Tally},
    trace::{self, Tracer, has_strace},
};

/// Rounds at a time: a service that waits until it may open its log again leaves the processor to the others.
const LANES: u64 = 4;
const WRITERS: u64 = 2;
/// Creates per writer before a fault that was not met counts as out of reach.
const CREATES_MAX: u64 = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Error(&'static str),
    /// EINTR: the call has to be made again, without an error.
    Interruption,
    Kill,
}

/// What fails when: the `nth` time that a thread makes the call on the store.
#[derive(Debug, Clone, Copy)]
struct Point {
    call: &'static str,
    fault: Fault,
    nth: u64,
}

/// All points, the early ones first. A call that was not made so often is not tried later.
struct Points {
    rows: Vec<(&'static str, Fault)>,
    next: usize,
    nth: u64,
    stride: u64,
    left: u64,
}

#[test]
fn a_call_that_fails_at_any_point_loses_nothing_and_invents_nothing() {
    let_calls_fail(Engine::chosen(), Scenario::begin("faults", 44, 500));
}

#[test]
fn a_call_that_fails_at_any_point_loses_nothing_with_sqlite_either() {
    let_calls_fail(Engine::Sqlite, Scenario::begin("sqlite faults", 40, 200));
}

fn let_calls_fail(engine: Engine, scenario: Scenario) {
    if !has_strace() {
        return scenario::not_run(scenario.name, "there is no strace");
    }
    let points = Mutex::new(Points::new(engine, &scenario));
    let shared = Mutex::new((scenario, Tally::default()));
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                let mut lane = Lane::new(engine);
                while let Some(point) = next(&points) {
                    let tally = lane.round(point);
                    let mut shared = shared.lock().expect("no lane has failed");
                    match tally {
                        Some(tally) => shared.1.join(tally),
                        None => points.lock().expect("no lane has failed").out_of_reach(point),
                    }
                    let (scenario, tally) = &mut *shared;
                    scenario.check(tally);
                }
            });
        }
    });
    let (scenario, tally) = shared.into_inner().expect("no lane has failed");
    assert_eq!(tally.rounds, scenario.rounds, "enough points are within reach");
    scenario.end(&tally);
}

#[test]
fn what_cannot_be_synced_is_never_acknowledged_and_never_shown() {
    let mut lane = Lane::new(Engine::Sled);
    let store = lane.begin_new_store();
    let_every_sync_fail(lane, &Engine::Sled.files(&store));
}

#[test]
fn what_cannot_be_synced_is_never_acknowledged_and_never_shown_with_sqlite_either() {
    let mut lane = Lane::new(Engine::Sqlite);
    let store = lane.begin_new_store();
    // Making a log needs syncs that succeed.
    lane.app.start_again();
    assert_eq!(lane.app.terminate().code(), Some(0));
    let_every_sync_fail(lane, &[store.join("pets-wal")]);
}

fn let_every_sync_fail(mut lane: Lane, files: &[PathBuf]) {
    if !has_strace() {
        return scenario::not_run("a sync that always fails", "there is no strace");
    }
    let sync = lane.engine.sync();
    let tracer = Tracer::new(&lane.trace()).calls(sync).inject(&format!("{sync}:error=EIO"));
    lane.app.run_by(&tracer.only(files).command());
    lane.app.start_again();
    let post = lane.app.call("POST", "/v1/pets");
    for count in 0..5 {
        assert_eq!(create(&post, &lane.ledger, &format!("pet {count}")), Some(503));
        assert_eq!(lane.app.get("/v1/pets").text(), "[]", "what is not durable is not shown");
        assert_eq!(lane.app.probe("/livez").status, 200);
        assert_eq!(lane.app.probe("/readyz").status, 503);
    }
    lane.app.kill();
    let mut tally = Tally::default();
    lane.recover(&mut tally);
    assert!(tally.is_clean(), "{tally:#?}");
}

/// The kernel reports a failed write to one sync and calls the page clean: the next sync succeeds, the data is gone.
#[test]
fn a_failed_sync_is_never_retried_into_a_success() {
    let_one_sync_fail(Engine::Sled, 1..=8);
}

#[test]
fn a_failed_sync_is_never_retried_into_a_success_with_sqlite_either() {
    let_one_sync_fail(Engine::Sqlite, 11..=18);
}

fn let_one_sync_fail(engine: Engine, which: RangeInclusive<u64>) {
    if !has_strace() {
        return scenario::not_run("a sync that fails once", "there is no strace");
    }
    let mut lane = Lane::new(engine);
    let mut met_at_work = 0;
    for nth in which {
        let store = lane.begin_new_store();
        let what = format!("{}:error=EIO:when={nth}", engine.sync());
        let tracer = Tracer::new(&lane.trace()).calls(engine.sync()).inject(&what);
        let tracer = tracer.only(&engine.files(&store));
        lane.app.run_by(&tracer.command());
        if lane.app.try_start_again().is_err() {
            continue;
        }
        let at_start = lane.injected();
        let post = lane.app.call("POST", "/v1/pets");
        let rejected = (0..CREATES_MAX)
            .filter(|count| create(&post, &lane.ledger, &format!("pet {nth}-{count}")) != Some(201))
            .count();
        if lane.injected() > at_start {
            met_at_work += 1;
            assert!(rejected > 0, "sync {nth} failed, and every create was acknowledged");
        }
        lane.app.kill();
        let mut tally = Tally::default();
        lane.recover(&mut tally);
        assert!(tally.is_clean(), "sync {nth}: {tally:#?}");
    }
    assert!(met_at_work >= 3, "only {met_at_work} of the failing syncs were those of commits");
}

fn next(points: &Mutex<Points>) -> Option<Point> {
    points.lock().expect("no lane has failed").next()
}

impl Points {
    fn new(engine: Engine, scenario: &Scenario) -> Self {
        let faults = [Fault::Error("EIO"), Fault::Kill, Fault::Error("ENOSPC")];
        let rows = faults.iter().flat_map(|fault| engine.calls().map(|call| (call, *fault)));
        let interruptions = engine.interruptible().iter().map(|call| (*call, Fault::Interruption));
        let rows = rows.chain(interruptions).collect();
        let stride = engine.stride();
        Self { rows, next: 0, nth: scenario.dice(0).within(1..=stride), stride, left: scenario.rounds }
    }

    fn next(&mut self) -> Option<Point> {
        if self.next >= self.rows.len() {
            (self.next, self.nth) = (0, self.nth + self.stride);
        }
        if self.left == 0 || self.rows.is_empty() {
            return None;
        }
        let (call, fault) = self.rows[self.next];
        self.next += 1;
        self.left -= 1;
        Some(Point { call, fault, nth: self.nth })
    }

    fn out_of_reach(&mut self, point: Point) {
        self.left += 1;
        if let Some(row) = self.rows.iter().position(|row| *row == (point.call, point.fault)) {
            self.rows.remove(row);
            self.next -= usize::from(row < self.next);
        }
    }
}

/// A service and its stores, one fault after the other.
struct Lane {
    engine: Engine,
    app: App,
    ledger: Arc<Ledger>,
    stores: u64,
}

impl Lane {
    fn new(engine: Engine) -> Self {
        let app = App::stopped("memory:", &[]);
        Self { engine, app, ledger: Arc::default(), stores: 0 }
    }

    /// Lets the fault happen and looks at what is left; `None` if it did not happen.
    fn round(&mut self, point: Point) -> Option<Tally> {
        // Odd points meet a store in the making, even ones a store with a history.
        let store = self.begin_new_store();
        if point.nth.is_multiple_of(2) {
            self.app.run_by(&[]);
            self.app.start_again();
            self.write("before");
            self.app.kill();
        }
        let fault = match point.fault {
            Fault::Error(error) => format!("error={error}"),
            Fault::Interruption => "error=EINTR".to_owned(),
            Fault::Kill => "signal=KILL".to_owned(),
        };
        let what = format!("{}:{fault}:when={}", point.call, point.nth);
        let tracer = Tracer::new(&self.trace()).calls(point.call).inject(&what);
        let tracer = tracer.only(&self.engine.files(&store));
        self.app.run_by(&tracer.command());
        let mut tally = Tally { rounds: 1, ..Tally::default() };
        match self.app.try_start_again() {
            Ok(()) => self.live_with(point, &mut tally),
            Err(ended) => {
                tally.count("rejected or killed at the start", 1);
                let words = ended.stderr.trim();
                assert!(!words.contains("panicked"), "{point:?}: {words}");
                assert!(
                    point.fault == Fault::Kill || (ended.code == Some(1) && ended.sentences() == 1),
                    "{point:?}: one sentence and exit code 1: {ended:?}"
                );
                assert_ne!(point.fault, Fault::Interruption, "{point:?} goes unnoticed: {words}");
            }
        }
        self.app.kill();
        let happened = self.happened(point.fault, &tally);
        self.recover(&mut tally);
        happened.then_some(tally)
    }

    /// Writes until the fault is met, and waits until the service is well again.
    fn live_with(&mut self, point: Point, tally: &mut Tally) {
        let met = self.write("under");
        match met {
            Met::Nothing => {}
            Met::Refusal => {
                tally.count("rejecting, then recovered", 1);
                assert_ne!(
                    point.fault,
                    Fault::Interruption,
                    "{point:?} goes unnoticed: {:?}",
                    self.app.printed()
                );
                assert_eq!(self.app.get("/v1/pets").status, 200, "{point:?}: reads continue");
                assert_eq!(self.app.probe("/livez").status, 200, "{point:?}");
                // The fault is over, also for threads that have not met it yet.
                trace::detach(self.app.pid());
                let (post, ledger) = (self.app.call("POST", "/v1/pets"), &self.ledger);
                let mut tries = 0..;
                wait_until(&format!("writes continue after {point:?}"), || {
                    let name = format!("again {}", tries.next().expect("endless"));
                    create(&post, ledger, &name) == Some(201)
                });
            }
            Met::End => {
                tally.count("killed at work", 1);
                assert_eq!(
                    point.fault,
                    Fault::Kill,
                    "{point:?}: only a kill ends it: {:?}",
                    self.app.printed()
                );
            }
        }
    }

    /// Lets a few writers create until one does not get 201.
    fn write(&self, prefix: &str) -> Met {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (ledger, post) = (self.ledger.clone(), self.app.call("POST", "/v1/pets"));
                let prefix = prefix.to_owned();
                thread::spawn(move || {
                    for count in 0..CREATES_MAX {
                        match create(&post, &ledger, &format!("{prefix} {writer}-{count}")) {
                            Some(201) => {}
                            Some(_) => return Met::Refusal,
                            None => return Met::End,
                        }
                    }
                    Met::Nothing
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().expect("writers do not panic")).max().expect("some")
    }

    /// Starts the service without any fault, which must work, and settles.
    fn recover(&mut self, tally: &mut Tally) {
        self.app.run_by(&[]);
        self.ledger.start_and_settle(&mut self.app, tally);
        self.app.kill();
    }

    fn happened(&self, fault: Fault, tally: &Tally) -> bool {
        match fault {
            Fault::Error(_) | Fault::Interruption => self.injected() > 0,
            Fault::Kill => tally.more.iter().any(|(what, _)| what.contains("killed")),
        }
    }

    /// How often the fault has happened so far.
    fn injected(&self) -> usize {
        let trace = fs::read_to_string(self.trace()).expect("the tracer writes before the service continues");
        trace.matches("(INJECTED)").count()
    }

    fn begin_new_store(&mut self) -> PathBuf {
        self.stores += 1;
        let store = self.app.directory().join(self.stores.to_string());
        self.app.use_store(&self.engine.url(&store));
        self.ledger = Arc::default();
        store
    }

    fn trace(&self) -> PathBuf {
        Path::new(self.app.directory()).join("trace")
    }
}

/// How writing ended, the graver the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    Nothing,
    Refusal,
    End,
}
