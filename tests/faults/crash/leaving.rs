//! A service that gets a signal to stop while its disk is slow or hangs.

use std::{process::ExitStatus, thread, time::Duration};

use harness::{App, REX, Response, program};

use super::{
    engine::Engine,
    scenario,
    trace::{Tracer, has_strace, wait_until_exited, wait_until_held},
};

/// Long enough that a request which was just sent has come to its sync.
const A_MOMENT: Duration = Duration::from_millis(500);

#[test]
fn a_create_in_flight_gets_its_response_before_the_service_stops() {
    let Some((response, ended, _)) = leave_with_a_create_in_flight(2, &["TERM"]) else { return };
    assert_eq!(response.map(|response| response.status), Some(201));
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_second_signal_stops_a_service_whose_disk_hangs() {
    let Some((response, ended, stderr)) = leave_with_a_create_in_flight(12, &["TERM", "INT"]) else { return };
    assert!(response.is_none_or(|response| response.status != 201), "acknowledged without a sync");
    assert_eq!(ended.code(), Some(1), "{stderr}");
    assert!(stderr.contains("received a second signal"), "{stderr}");
}

#[test]
fn a_signal_that_is_sent_twice_at_once_counts_once() {
    let mut app = App::start_with(&["--drain-delay", "1s"]);
    app.signal("TERM");
    app.signal("TERM");
    let ended = app.wait_until_ended();
    assert_eq!(ended.code(), Some(0), "{}", app.printed().1);
}

/// The log hangs in a sync while it is closed: idle and after a write, on every engine.
#[test]
fn closing_a_log_on_a_hanging_disk_has_a_deadline() {
    if !has_strace() {
        return scenario::not_run("a hanging disk", "there is no strace");
    }
    for engine in [Engine::Sled, Engine::Sqlite] {
        for (what, pets) in [("idle", 0), ("after a write", 1)] {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let (store, trace) = (directory.path().join("log"), directory.path().join("trace"));
            std::fs::create_dir(&store).expect("a new directory");
            let mut app = App::start_on(program(), &engine.url(&store), directory, &[]);
            for _ in 0..pets {
                app.add("Rex");
            }
            let hang = "fdatasync,fsync,sync_file_range:delay_enter=600000000";
            let tracer = Tracer::new(&trace).calls("fdatasync,fsync,sync_file_range").inject(hang);
            let tracer = tracer.only(&engine.files(&store)).attach(app.pid());
            app.signal("TERM");
            wait_until_held(app.pid(), "petstore-log");
            wait_until_exited(app.pid());
            // It keeps the thread that hangs, and so the whole process, from being reaped.
            drop(tracer);
            let (ended, stderr) = (app.wait_until_ended(), app.printed().1);
            assert_eq!(ended.code(), Some(1), "{engine:?}, {what}: {stderr}");
            assert!(stderr.contains("could not be closed within 10s"), "{engine:?}, {what}: {stderr}");
        }
    }
}

/// What became of a create and of the service, on a store whose every sync takes so many seconds, when signals come one after
/// the other; and what the service said.
fn leave_with_a_create_in_flight(
    seconds: u64,
    signals: &[&str],
) -> Option<(Option<Response>, ExitStatus, String)> {
    if !has_strace() {
        scenario::not_run("a slow disk", "there is no strace");
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (store, trace) = (directory.path().join("log"), directory.path().join("trace"));
    let mut app = App::start_on(program(), &Engine::Sled.url(&store), directory, &["--drain", "5s"]);
    app.kill();
    let slow = format!("fdatasync:delay_enter={}", 1_000_000 * seconds);
    app.run_by(
        &Tracer::new(&trace).calls("fdatasync").inject(&slow).only(&Engine::Sled.files(&store)).command(),
    );
    app.start_again();
    let post = app.call("POST", "/v1/pets").json(REX);
    let create = thread::spawn(move || post.try_send());
    for signal in signals {
        thread::sleep(A_MOMENT);
        app.signal(signal);
    }
    let ended = app.wait_until_ended();
    Some((create.join().expect("callers do not panic"), ended, app.printed().1))
}
