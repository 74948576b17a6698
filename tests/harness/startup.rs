//! The wait for a server to become ready. A server that ends, or takes too long, fails the test with its health report
//! and the end of its log.

use std::{fs, path::Path, process::Child, thread};

use crate::program::{Deadline, INTERVAL, TIMEOUT};

/// How many lines of a log are shown.
const LINES: usize = 40;
/// A line that NATS logs for every failed request for its health, which is shown anyway.
const HEALTH_CHECK: &str = "Healthcheck failed";

/// A server that has been started and is not ready yet.
pub struct Startup<'a> {
    server: &'a str,
    log: &'a Path,
    deadline: Deadline,
}

impl<'a> Startup<'a> {
    /// Begins the wait for a server that writes to this log.
    pub fn new(server: &'a str, log: &'a Path) -> Self {
        Self { server, log, deadline: Deadline::after(TIMEOUT) }
    }

    /// Waits until the server is ready.
    pub fn wait(
        &mut self,
        process: &mut Child,
        mut is_ready: impl FnMut() -> bool,
        health: impl Fn() -> String,
    ) {
        while !is_ready() {
            self.check(process, &health);
            thread::sleep(INTERVAL);
        }
    }

    /// Fails if the server has ended or time is up; `health` then asks for its own report.
    pub(crate) fn check(&mut self, process: &mut Child, health: impl FnOnce() -> String) {
        let Self { server, log, .. } = self;
        if let Some(status) = process.try_wait().expect("a child can be asked") {
            panic!("{server} ended with {status} before it was ready\n{}", end_of(log));
        }
        self.check_time(health);
    }

    /// Fails if time is up.
    pub(crate) fn check_time(&mut self, health: impl FnOnce() -> String) {
        let is_late = self.deadline.is_over();
        let Self { server, log, .. } = self;
        assert!(!is_late, "{server} is not ready within {TIMEOUT:?}\nhealth: {}\n{}", health(), end_of(log));
    }
}

/// The last lines of a log file.
pub(crate) fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_else(|error| error.to_string().into_bytes());
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().filter(|line| !line.contains(HEALTH_CHECK)).collect();
    let shown = lines[lines.len().saturating_sub(LINES)..].join("\n");
    format!("the end of {}:\n{shown}\n", log.display())
}
