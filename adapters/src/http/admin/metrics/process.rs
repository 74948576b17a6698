//! Metrics of the process: memory, file descriptors, CPU time and start time, under the names that Prometheus libraries
//! use. They come from `/proc`; where there is none, they are absent. The memory limit, which those libraries do not have,
//! also takes control groups into account.

use std::{fs, path::Path, str::FromStr};

use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};
use rustix::param::clock_ticks_per_second;

use super::register_known;

pub(super) fn register(registry: &mut Registry) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let bytes = |name| value::<u64>(&status, name).map(|kib| kib * 1024);
    // One of the open files is the directory that is being read.
    let open = fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1) as u64);
    let limit =
        "Memory that the process may use: the limit of its control group, or all of the machine's memory";
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory", bytes("VmRSS:")),
        ("process_virtual_memory_bytes", "Virtual memory", bytes("VmSize:")),
        ("petstore_memory_limit_bytes", limit, memory_limit()),
        ("process_threads", "Threads", value(&status, "Threads:")),
        ("process_open_fds", "Open file descriptors", open),
        ("process_max_fds", "Maximum number of open file descriptors", value(&limits, "Max open files")),
    ];
    register_known(registry, gauges);
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the binary is in parentheses and may contain any character.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    // Fields are numbered from 1 as in proc(5); the first one after the name is field 3.
    let ticks = |field: usize| Some(seconds(fields.get(field - 3)?.parse().ok()?));
    if let (Some(user), Some(system)) = (ticks(14), ticks(15)) {
        let time = ConstCounter::new(user + system);
        registry.register("process_cpu_seconds", "User and system CPU time", time);
    }
    let system = fs::read_to_string("/proc/stat").unwrap_or_default();
    let started = ticks(22).zip(value::<f64>(&system, "btime")).map(|(since_boot, boot)| boot + since_boot);
    let help = "Start of the process, in seconds since 1970";
    register_known(registry, [("process_start_time_seconds", help, started)]);
}

/// The memory of the machine, or the smallest limit of the control groups (version 2) that the process is in, whichever is
/// less.
fn memory_limit() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = value::<u64>(&memory, "MemTotal:").map(|kib| kib * 1024);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    group_limits(Path::new("/sys/fs/cgroup"), group).chain(machine).min()
}

/// The limits of a control group and of the groups around it. A group without a limit says `max`.
fn group_limits(root: &Path, group: &str) -> impl Iterator<Item = u64> {
    let files = Path::new(group).ancestors().map(|group| root.join(group).join("memory.max"));
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_enclosing_control_group_limits_the_memory() {
        let root = tempfile::tempdir().unwrap();
        let service = root.path().join("system.slice/petstore.service");
        fs::create_dir_all(&service).unwrap();
        fs::write(service.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("system.slice/memory.max"), "2147483648\n").unwrap();
        let limits = |group: &str| group_limits(root.path(), group).collect::<Vec<_>>();
        assert_eq!(limits("system.slice/petstore.service"), [2_147_483_648]);
        // In a container, the group of the process is the root.
        assert!(limits("").is_empty());
        fs::write(root.path().join("memory.max"), "1073741824\n").unwrap();
        assert_eq!(limits(""), [1_073_741_824]);
    }
}
