//! strace in front of the service: it writes down system calls, and makes some of them fail.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::eventually;

/// A tracer in the making.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Vec<String>);

impl Tracer {
    /// Follows all threads and writes to this file. The service stays a child of its own parent, and the
    /// tracer goes when it is told to.
    pub(crate) fn new(file: &Path) -> Self {
        let file = file.to_str().expect("temporary folders have plain names");
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
            let path = path.to_str().expect("temporary folders have plain names").trim_end_matches('/');
            self.0.extend(["-P".to_owned(), path.to_owned()]);
        }
        self
    }

    pub(crate) fn command(self) -> Vec<String> {
        self.0
    }
}

/// Whether there is a tracer on this machine that may trace.
pub(crate) fn has_strace() -> bool {
    Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
}

/// Sends the tracer of a process away. The process goes on as if nobody had ever tampered with its calls.
pub(crate) fn detach(pid: u32) {
    let Some(tracer) = tracer_of(pid) else { return };
    let told = Command::new("kill").args(["-s", "TERM", &tracer]).status();
    assert!(told.expect("kill runs").success(), "the tracer can be told to go");
    eventually("the tracer has gone", || tracer_of(pid).is_none().then_some(()));
}

fn tracer_of(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim();
    (tracer != "0").then(|| tracer.to_owned())
}
