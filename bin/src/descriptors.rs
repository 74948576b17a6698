//! File descriptors: how many this process may have, and who gets them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for our own files: the log, the key file, the connections to a storage engine, and what the runtime needs.
const OWN_FILES: u64 = 64;

/// How many connections each listener may have open, so that our own files can always be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) callers: usize,
    pub(crate) operators: usize,
    /// Connections that are told that they are one too many, on each of the two.
    pub(crate) refusals: usize,
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
pub(crate) fn divide(limit: u64, wanted: Shares) -> Shares {
    let free = usize::try_from(limit.saturating_sub(OWN_FILES)).unwrap_or(usize::MAX);
    let refusals = wanted.refusals.min(free / 16).max(1);
    let operators = wanted.operators.min(free / 8).max(1);
    let callers = wanted.callers.min(free.saturating_sub(operators + 2 * refusals)).max(1);
    Shares { callers, operators, refusals }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Shares = Shares { callers: 10_000, operators: 100, refusals: 256 };

    #[test]
    fn our_own_files_always_have_room() {
        assert_eq!(divide(u64::MAX, WANTED), WANTED);
        for limit in [128, 256, 1_024, 4_096, 10_000] {
            let Shares { callers, operators, refusals } = divide(limit, WANTED);
            let used = (callers + operators + 2 * refusals) as u64;
            assert!(used + OWN_FILES <= limit, "{limit}: {used}");
            assert!(callers as u64 >= limit / 4, "{limit}: {callers}");
        }
        assert_eq!(divide(0, WANTED), Shares { callers: 1, operators: 1, refusals: 1 });
    }
}
