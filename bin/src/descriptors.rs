//! File descriptors: how many this process may have, and who gets them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for our own files: the log, the key file, the connections to a storage engine, and what the runtime needs.
const OWN_FILES: u64 = 64;

/// How many connections each listener may have open, so that our own files can always be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionShares {
    pub(crate) clients: usize,
    pub(crate) admin: usize,
    /// Connections that are told that they are one too many, on each of the two.
    pub(crate) rejections: usize,
}

/// Raises the soft limit on open files to the hard one, and returns it.
pub(crate) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::debug!("the limit on open files stays at {current:?}: {error}");
            current.unwrap_or(u64::MAX)
        }
    }
}

/// Divides what is left of `limit` descriptors: at most `wanted` shares, and at least one connection each.
pub(crate) fn divide(limit: u64, wanted: ConnectionShares) -> ConnectionShares {
    let free = usize::try_from(limit.saturating_sub(OWN_FILES)).unwrap_or(usize::MAX);
    let rejections = wanted.rejections.min(free / 16).max(1);
    let admin = wanted.admin.min(free / 8).max(1);
    let clients = wanted.clients.min(free.saturating_sub(admin + 2 * rejections)).max(1);
    ConnectionShares { clients, admin, rejections }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: ConnectionShares = ConnectionShares { clients: 10_000, admin: 100, rejections: 256 };

    #[test]
    fn our_own_files_always_have_room() {
        assert_eq!(divide(u64::MAX, WANTED), WANTED);
        for limit in [128, 256, 1_024, 4_096, 10_000] {
            let ConnectionShares { clients, admin, rejections } = divide(limit, WANTED);
            let used = (clients + admin + 2 * rejections) as u64;
            assert!(used + OWN_FILES <= limit, "{limit}: {used}");
            assert!(clients as u64 >= limit / 4, "{limit}: {clients}");
        }
        assert_eq!(divide(0, WANTED), ConnectionShares { clients: 1, admin: 1, rejections: 1 });
    }
}
