//! File descriptors: the limit of this process, and how it is divided.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reserved for files of the service: the log, the key file, the connections to a storage engine, and the runtime.
const OWN_FILES: u64 = 64;

/// The number of connections of each listener, so that the service can always open its own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionShares {
    pub(crate) clients: usize,
    pub(crate) admin: usize,
}

/// Raises the soft limit on open files to the hard one, and returns it.
pub(crate) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::debug!(
                target: "petstore::service",
                limit = ?current, %error,
                "cannot raise the limit on open files"
            );
            current.unwrap_or(u64::MAX)
        }
    }
}

/// Divides `limit` descriptors, without the reserved ones: at most `wanted`, and at least one connection each.
pub(crate) fn divide(limit: u64, wanted: ConnectionShares) -> ConnectionShares {
    let free = usize::try_from(limit.saturating_sub(OWN_FILES)).unwrap_or(usize::MAX);
    let admin = wanted.admin.min(free / 8).max(1);
    // Each listener may have one more connection: the one that replaces an evicted connection.
    let clients = wanted.clients.min(free.saturating_sub(admin + 2)).max(1);
    ConnectionShares { clients, admin }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: ConnectionShares = ConnectionShares { clients: 10_000, admin: 100 };

    #[test]
    fn our_own_files_always_have_room() {
        assert_eq!(divide(u64::MAX, WANTED), WANTED);
        for limit in [128, 256, 1_024, 4_096, 10_000] {
            let ConnectionShares { clients, admin } = divide(limit, WANTED);
            let used = (clients + admin + 2) as u64;
            assert!(used + OWN_FILES <= limit, "{limit}: {used}");
            assert!(clients as u64 >= limit / 4, "{limit}: {clients}");
        }
        assert_eq!(divide(0, WANTED), ConnectionShares { clients: 1, admin: 1 });
    }
}
