//! Log positions, by which clients name a commit of one history.

use std::collections::VecDeque;

use crate::log::{commit::Position, digest::Digest};

/// The length of the hash in a log position: long enough to distinguish histories.
pub const HASH_PREFIX: usize = 8;

/// The number of recent commits whose hashes are kept in memory. Older ones are read from the log.
const RECENT_MAX: usize = 4_096;

/// A commit, as named by clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Its position.
    pub position: Position,
    /// The first bytes of the head hash at that position. Without them, any history that is long enough matches.
    pub hash: Option<[u8; HASH_PREFIX]>,
}

impl From<Position> for LogPosition {
    fn from(position: Position) -> Self {
        Self { position, hash: None }
    }
}

#[derive(Debug)]
pub(crate) struct Recent {
    last: Position,
    /// Oldest first. Positions have no gaps, so the index of a hash gives its position.
    hashes: VecDeque<[u8; HASH_PREFIX]>,
}

impl Recent {
    pub(crate) fn add(&mut self, position: Position, head_hash: Digest) {
        if self.hashes.len() == RECENT_MAX {
            self.hashes.pop_front();
        }
        self.last = position;
        self.hashes.push_back(prefix(head_hash));
    }

    pub(crate) fn last(&self) -> LogPosition {
        LogPosition { position: self.last, hash: self.hashes.back().copied() }
    }

    /// Whether the history holds this commit. `None` if the commit is too old to tell.
    pub(crate) fn holds(&self, named: LogPosition) -> Option<bool> {
        let Some(age) = self.last.0.checked_sub(named.position.0) else { return Some(false) };
        let Some(hash) = named.hash.filter(|_| named.position > Position::START) else {
            return Some(true);
        };
        let age = usize::try_from(age).ok()?;
        let known = self.hashes.get(self.hashes.len().checked_sub(age + 1)?)?;
        Some(*known == hash)
    }
}

/// The empty log.
impl Default for Recent {
    fn default() -> Self {
        Self { last: Position::START, hashes: [prefix(Digest::of(&[]))].into() }
    }
}

pub(crate) fn prefix(Digest(digest): Digest) -> [u8; HASH_PREFIX] {
    *digest.first_chunk().expect("a digest is longer than its prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64, hash: u8) -> LogPosition {
        LogPosition { position: Position(position), hash: Some([hash; HASH_PREFIX]) }
    }

    #[test]
    fn a_history_holds_its_own_commits_and_no_others() {
        let mut recent = Recent::default();
        for position in 1..=3_u8 {
            recent.add(Position(position.into()), Digest([position; 32]));
        }
        assert_eq!(recent.last(), at(3, 3));
        assert_eq!([1, 2, 3].map(|n| recent.holds(at(n.into(), n))), [Some(true); 3]);
        assert_eq!(recent.holds(at(2, 3)), Some(false), "another history");
        assert_eq!(recent.holds(at(4, 4)), Some(false), "not reached yet");
        assert_eq!(
            recent.holds(Recent::default().last()),
            Some(true),
            "every history begins with the empty log"
        );
        assert_eq!(recent.holds(Position(3).into()), Some(true), "a bare position fits every history");
        assert_eq!(recent.holds(Position(4).into()), Some(false), "that is long enough");
    }

    #[test]
    fn what_is_too_long_ago_is_forgotten() {
        let mut recent = Recent::default();
        for position in 1..=u64::try_from(RECENT_MAX).unwrap() + 1 {
            recent.add(Position(position), Digest([7; 32]));
        }
        assert_eq!(recent.holds(at(1, 7)), None);
        assert_eq!(recent.holds(at(2, 7)), Some(true));
        assert_eq!(recent.holds(Position(1).into()), Some(true));
        assert_eq!(recent.holds(Recent::default().last()), Some(true), "the empty log is never forgotten");
    }
}
