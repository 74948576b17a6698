//! The newest commit that this node stored or read, so that most appends can be compared with it without asking the
//! leader first.

use application::{
    codec,
    ports::{CommitId, Position, StoredRecord, Version},
};
use bytes::Bytes;

/// The newest commit, for as long as the connection lasts over which it came.
#[derive(Debug, Default)]
pub(super) struct LastCommit {
    position: Position,
    commit: Option<Commit>,
    /// How often the connection had been lost when the commit came.
    losses: u64,
}

#[derive(Debug)]
enum Commit {
    Stored(CommitId),
    /// Decoded only when it is compared: most commits that are read are never appended to.
    Read(Bytes),
}

impl LastCommit {
    /// Takes note of a commit of this node.
    pub(super) fn stored(&mut self, position: Position, commit: CommitId, losses: u64) {
        *self = Self { position, commit: Some(Commit::Stored(commit)), losses };
    }

    /// Takes note of a record that was read. An older one than the newest changes nothing.
    pub(super) fn read(&mut self, record: &StoredRecord, losses: u64) {
        if record.position > self.position || losses != self.losses {
            let commit = Some(Commit::Read(record.bytes.clone()));
            *self = Self { position: record.position, commit, losses };
        }
    }

    /// Whether this is the expected commit, and came over the connection that has been lost so many times.
    pub(super) fn is(&mut self, expected: Version, losses: u64) -> bool {
        if self.position != expected.position || self.losses != losses {
            return false;
        }
        if let Some(Commit::Read(bytes)) = &self.commit {
            // Bytes that are no commit are nobody's expectation.
            self.commit = codec::decode(bytes).ok().map(|commit| Commit::Stored(commit.id));
        }
        matches!(self.commit, Some(Commit::Stored(commit)) if expected.commit == Some(commit))
    }
}

#[cfg(test)]
mod tests {
    use application::contract;

    use super::*;

    fn stored(position: u64) -> (StoredRecord, Version) {
        let record = contract::record(position);
        let position = Position(position);
        (StoredRecord { position, bytes: record.bytes }, Version::at(position, record.id))
    }

    #[test]
    fn the_newest_commit_is_recognised_whether_it_was_stored_or_read() {
        let (record, version) = stored(7);
        let mut last = LastCommit::default();
        last.read(&record, 0);
        assert!(last.is(version, 0));
        last.stored(version.position, stored(7).1.commit.unwrap(), 0);
        assert!(!last.is(version, 0), "another commit stands there now");
    }

    #[test]
    fn an_older_record_changes_nothing_until_the_connection_is_a_new_one() {
        let ((older, older_version), (newer, newer_version)) = (stored(6), stored(7));
        let mut last = LastCommit::default();
        last.read(&newer, 0);
        last.read(&older, 0);
        assert!(last.is(newer_version, 0));
        assert!(!last.is(newer_version, 1), "a new connection may lead to another log");
        last.read(&older, 1);
        assert!(last.is(older_version, 1));
    }

    #[test]
    fn bytes_that_are_not_a_commit_are_not_the_expected_one() {
        let (record, version) = stored(7);
        let mut last = LastCommit::default();
        last.read(&StoredRecord { bytes: Bytes::from_static(b"x"), ..record }, 0);
        assert!(!last.is(version, 0));
        assert!(!last.is(Version { commit: None, ..version }, 0));
    }
}
