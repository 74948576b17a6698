//! The store URL changes the engine and nothing else: the tests of the interface pass unchanged on every
//! engine.

use std::process::Command;

use harness::{Gateway, program};

/// The tests that any engine must pass: everything a client can see.
pub(crate) const INTERFACE: [&str; 3] = ["api::create_pet::", "api::get_pet::", "api::list_pets::"];
/// The tests that only an engine passes whose log survives the process.
pub(crate) const DURABLE: [&str; 4] =
    ["api::idempotency::", "api::caching::", "storage::restart::a_clean_stop", "storage::restart::a_kill"];

/// Those of them that object storage passes: it rejects requests of a client whose clock is 30 days wrong.
pub(crate) const DURABLE_IN_BUCKETS: [&str; 5] = [
    "api::idempotency::fifty_parallel",
    "api::idempotency::keys_of_different",
    "api::caching::",
    "storage::restart::a_clean_stop",
    "storage::restart::a_kill",
];

/// Runs tests of this binary again, with their services on another engine.
fn pass_on(engine: &str, tests: &[&str]) {
    // This path stays valid if the binary is rebuilt while it runs.
    let mut run = Command::new("/proc/self/exe");
    if engine == "s3" {
        let (name, cluster) = Gateway::shared_with_child();
        run.env(name, cluster);
    }
    let run = run
        .args(tests)
        .env("TEST_ENGINE", engine)
        .env("TEST_PROGRAM", program())
        // The other engines run at the same time.
        .env("RUST_TEST_THREADS", "2")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&run.stdout);
    let summary = printed.lines().find(|line| line.starts_with("test result:")).unwrap_or("no summary");
    println!("{engine}: {summary}");
    assert!(run.status.success(), "{engine}: {printed}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(!summary.contains(" 0 passed"), "{engine}: {summary}");
}

#[test]
fn the_interface_is_the_same_in_memory() {
    pass_on("memory", &INTERFACE);
}

#[test]
fn the_interface_is_the_same_on_sqlite() {
    pass_on("sqlite", &[&INTERFACE[..], &DURABLE].concat());
}

#[test]
fn the_interface_is_the_same_on_postgres() {
    pass_on("postgres", &[&INTERFACE[..], &DURABLE].concat());
}

#[test]
fn the_interface_is_the_same_on_nats() {
    pass_on("nats", &[&INTERFACE[..], &DURABLE].concat());
}

#[test]
fn the_interface_is_the_same_on_object_storage() {
    pass_on("s3", &[&INTERFACE[..], &DURABLE_IN_BUCKETS].concat());
}
