//! File descriptors: the limit of this process, and how it is divided.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reserved for files of the service: the log, the key file, the connections to a storage engine, and the runtime.
const OWN_FILES: u64 = 64;

/// The maximum number of connections of the admin listener.
const ADMIN_CONNECTIONS_MAX: usize = 100;

/// Raises the limit on open files, and divides it: returns the maximum numbers of connections of the public and of the
/// admin listener.
pub(crate) fn share(max_connections: usize) -> (usize, usize) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // After an error, the old limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let (clients, admin) = divide(limit, max_connections);
    if clients < max_connections {
        tracing::warn!(
            target: "petstore::service", connections_max = clients,
            wanted = max_connections,
            open_files_max = limit,
            "--max-connections is lowered by the limit on open files: raise that limit (ulimit -Hn, LimitNOFILE=)"
        );
    }
    (clients, admin)
}

/// Divides `limit` descriptors, without the reserved ones: at least one connection each.
fn divide(limit: u64, max_connections: usize) -> (usize, usize) {
    let free = usize::try_from(limit.saturating_sub(OWN_FILES)).unwrap_or(usize::MAX);
    let admin = ADMIN_CONNECTIONS_MAX.min(free / 8).max(1);
    // Each listener may have one more connection: the one that replaces an evicted connection.
    (max_connections.min(free.saturating_sub(admin + 2)).max(1), admin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_files_always_have_room() {
        assert_eq!(divide(u64::MAX, 10_000), (10_000, ADMIN_CONNECTIONS_MAX));
        for limit in [128, 256, 1_024, 4_096, 10_000] {
            let (clients, admin) = divide(limit, 10_000);
            let used = (clients + admin + 2) as u64;
            assert!(used + OWN_FILES <= limit, "{limit}: {used}");
            assert!(clients as u64 >= limit / 4, "{limit}: {clients}");
        }
        assert_eq!(divide(0, 10_000), (1, 1));
    }
}
