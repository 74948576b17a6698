//! The machine and the builds, which the results depend on.

use std::{
    env, fs,
    io::Write as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::PACKAGED;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::servers::RELEASE;

const SYNCS: usize = 500;

/// Prints a Markdown table.
pub(crate) fn print() {
    let cpus = fs::read_to_string("/proc/cpuinfo").expect("Linux has /proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown model");
    let cores = thread::available_parallelism().expect("Linux counts its cores");
    let directory = env::temp_dir().display().to_string();
    let device = output("findmnt", &["-no", "SOURCE", "-T", &directory]);
    println!("| | |\n|---|---|");
    println!(
        "| CPU | {}, {cores} cores |",
        model.trim_start_matches(|c: char| c == ':' || c.is_whitespace())
    );
    println!("| kernel | {} |", output("uname", &["-srm"]));
    println!("| file system | {} |", output("findmnt", &["-no", "FSTYPE", "-T", &directory]));
    println!(
        "| disk | {}; a 4 KiB append and `fdatasync` takes {:.3} ms (median) |",
        output("lsblk", &["-dno", "NAME,SIZE,MODEL", &device]),
        sync_time().as_secs_f64() * 1e3
    );
    println!("| toolchain | {} |", output("rustc", &["-V"]));
    let built = |command: &str| {
        let other = env::var("TEST_PROGRAM").map(|program| format!("`{program}`, which was given"));
        other.unwrap_or_else(|_| format!("`cargo {command}`"))
    };
    println!("| petstore | {} |", built(RELEASE));
    println!("| petstore, dist | {} |", built(PACKAGED));
    println!(
        "| peers | `tests/benchmark`: `cargo bench`, with the profile `release` and petstore's allocator |"
    );
    println!(
        "| commit | {} |",
        output("git", &["describe", "--always", "--exclude=*", "--dirty= + changes"])
    );
}

/// Raises the soft limit on open files, which all servers and wrk inherit, to the hard one, and returns it.
pub(crate) fn raise_open_files() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("a soft limit can be raised");
    maximum.unwrap_or(u64::MAX)
}

/// Standard output with single spaces.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout);
    let text = String::from_utf8(output.unwrap_or_default()).expect("the output is UTF-8");
    if text.is_empty() { "unknown".into() } else { text.split_whitespace().collect::<Vec<_>>().join(" ") }
}

/// The median time of one durable append to a file.
fn sync_time() -> Duration {
    let mut file = tempfile::tempfile().expect("a temporary file");
    let mut append = || {
        let start = Instant::now();
        file.write_all(&[0; 4096]).and_then(|()| file.sync_data()).expect("the file is written");
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..SYNCS).map(|_| append()).collect();
    times.sort();
    times[SYNCS / 2]
}

/// CPU time that the hypervisor gave to others, since the start.
pub(crate) struct StolenTime {
    stolen: f64,
    total: f64,
}

impl StolenTime {
    pub(crate) fn start() -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("Linux has /proc/stat");
        // user nice system idle iowait irq softirq steal; guest time is part of user time
        let times: Vec<f64> =
            stat.split_whitespace().skip(1).take(8).map(|time| time.parse().expect("a number")).collect();
        Self { stolen: times[7], total: times.iter().sum() }
    }

    pub(crate) fn percent(&self) -> f64 {
        let now = Self::start();
        100.0 * (now.stolen - self.stolen) / (now.total - self.total)
    }
}
