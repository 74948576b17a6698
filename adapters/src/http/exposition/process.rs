//! What the system says about this process: memory, descriptors, processor time and start, under the names that
//! Prometheus libraries use. Read from `/proc`, which is not a disk; where there is none, nothing is shown.

use std::{fs, str::FromStr};

use rustix::param::clock_ticks_per_second;

use super::text::Text;

pub(super) fn show(text: &mut Text) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (field, name, help) in [
        ("VmRSS:", "process_resident_memory_bytes", "Memory that is in use."),
        ("VmSize:", "process_virtual_memory_bytes", "Addresses that are reserved."),
    ] {
        if let Some(kib) = value::<u64>(&status, field) {
            text.gauge(name, help, kib * 1024);
        }
    }
    if let Some(threads) = value::<u64>(&status, "Threads:") {
        text.gauge("process_threads", "Threads.", threads);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the folder that is being read.
        text.gauge("process_open_fds", "Open file descriptors.", open.count().saturating_sub(1));
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = value::<u64>(&limits, "Max open files") {
        text.gauge("process_max_fds", "How many file descriptors may be open.", most);
    }
    times(text);
}

fn times(text: &mut Text) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in parentheses, and may contain anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let ticks = |field: usize| Some(seconds(fields.get(field - 3)?.parse().ok()?));
    if let (Some(user), Some(system)) = (ticks(14), ticks(15)) {
        text.counter("process_cpu_seconds", "Processor time that was used.", user + system);
    }
    let system = fs::read_to_string("/proc/stat").unwrap_or_default();
    if let (Some(since_boot), Some(boot)) = (ticks(22), value::<f64>(&system, "btime")) {
        let help = "When the process started, in seconds since 1970.";
        text.gauge("process_start_time_seconds", help, boot + since_boot);
    }
}

#[expect(clippy::cast_precision_loss, reason = "the process would have to run for a million years")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// The first value on the line that begins with `name`.
fn value<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
