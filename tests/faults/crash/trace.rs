//! strace around the service: it records system calls, and makes some of them fail.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{Running, wait_until};

/// A tracer in the making.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Vec<String>);

impl Tracer {
    /// Follows all threads and writes to this file. The service stays a child of its parent, and the
    /// tracer detaches on request.
    pub(crate) fn new(file: &Path) -> Self {
        let file = file.to_str().expect("temporary directories have plain names");
        Self(["strace", "-D", "-I2", "-f", "-q", "-y", "-s", "1000", "-o", file].map(str::to_owned).into())
    }

    /// Looks at these calls only.
    pub(crate) fn calls(mut self, calls: &str) -> Self {
        self.0.extend(["-e".to_owned(), format!("trace={calls}")]);
        self
    }

    /// Tampers with calls, in strace's own words.
    pub(crate) fn inject(mut self, what: &str) -> Self {
        self.0.extend(["-e".to_owned(), format!("inject={what}")]);
        self
    }

    /// Looks only at calls that concern these files.
    pub(crate) fn only(mut self, files: &[PathBuf]) -> Self {
        for path in files {
            let path = path.to_str().expect("temporary directories have plain names").trim_end_matches('/');
            self.0.extend(["-P".to_owned(), path.to_owned()]);
        }
        self
    }

    pub(crate) fn command(self) -> Vec<String> {
        self.0
    }

    /// Traces a process that runs already, all of its threads.
    pub(crate) fn attach(mut self, pid: u32) -> Running {
        // A tracer of a process that it has not started cannot leave its own parent.
        self.0.retain(|word| word != "-D");
        let (program, flags) = self.0.split_first().expect("the first word is the program");
        let tracer = Command::new(program).args(flags).args(["-p", &pid.to_string()]).spawn();
        let attached = Running(tracer.expect("strace starts"));
        let is_traced = |status: &String| !status.contains("TracerPid:\t0\n");
        wait_until("every thread is traced", || threads(pid).iter().all(is_traced));
        attached
    }
}

/// Waits until a thread of this name is held by its tracer, within a call that takes long.
pub(crate) fn wait_until_held(pid: u32, name: &str) {
    let is_held = |status: &String| {
        status.contains(&format!("Name:\t{name}\n")) && status.contains("State:\tt (tracing stop)\n")
    };
    wait_until("the thread is held by its tracer", || threads(pid).iter().any(is_held));
}

/// Waits until a process has exited, even if its tracer still holds one of its threads.
pub(crate) fn wait_until_exited(pid: u32) {
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    wait_until("the process exits", || status().contains("State:\tZ (zombie)\n"));
}

/// What the system says about each thread of a process.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect()
}

/// Whether there is a tracer on this machine that may trace.
pub(crate) fn has_strace() -> bool {
    Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
}

/// Sends the tracer of a process away. The process continues without injected faults.
pub(crate) fn detach(pid: u32) {
    let Some(tracer) = tracer_of(pid) else { return };
    let output = Command::new("kill").args(["-s", "TERM", &tracer]).status();
    assert!(output.expect("kill runs").success(), "the tracer gets the signal");
    wait_until("the tracer has gone", || tracer_of(pid).is_none());
}

fn tracer_of(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim();
    (tracer != "0").then(|| tracer.to_owned())
}
