//! What this node has seen of the log, so that it notices when another server has another history: a promoted
//! standby may lack the last commits of the server before it.

use application::ports::{CommitId, Fault, LogError, Position};

/// The last commit that callers were given, and whether the server still has it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    last: Option<(Position, CommitId)>,
    /// What was read or stored most recently, be it new or old.
    newest: Option<(Position, CommitId)>,
    /// The position at which another history has taken the place of the one that was seen. Whoever stands there or
    /// beyond stands on commits that are gone, and must not go on from there.
    lost: Option<Position>,
}

impl Seen {
    /// The commit that the next server must have.
    pub(super) fn last(&self) -> Option<(Position, CommitId)> {
        self.last
    }

    /// The commit at `position`, if it is the one that was read or stored most recently.
    pub(super) fn commit_at(&self, position: Position) -> Option<CommitId> {
        self.newest.filter(|(newest, _)| *newest == position).map(|(_, commit)| commit)
    }

    /// The server in use now has `found` at the position of the last commit.
    pub(super) fn compare(&mut self, found: Option<CommitId>) {
        if let Some((position, commit)) = self.last {
            let kept = found == Some(commit);
            self.lost = if kept { None } else { Some(position) };
        }
    }

    /// Refuses to go on from a position that stands on commits that are gone.
    pub(super) fn check(&self, position: Position) -> Result<(), LogError> {
        match self.lost {
            Some(lost) if position >= lost => Err(diverged(lost)),
            Some(_) | None => Ok(()),
        }
    }

    /// Callers were given this commit, and everything before it that they did not have yet.
    pub(super) fn given(&mut self, position: Position, commit: CommitId) {
        self.newest = Some((position, commit));
        let from = self.lost.or_else(|| self.last.map(|(last, _)| last.next())).unwrap_or_default();
        if position >= from {
            (self.last, self.lost) = (self.newest, None);
        }
    }
}

/// The server has another history than the one that was read before, from `position` on if not earlier.
pub(super) fn diverged(position: Position) -> LogError {
    let detail = format!(
        "PostgreSQL no longer has the commit that was read at position {position}: another server with another \
         history has taken over, or the database was restored"
    );
    LogError::new(Fault::Diverged, detail)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn commit(number: u128) -> CommitId {
        CommitId(Uuid::from_u128(number))
    }

    fn seen_up_to(position: u64) -> Seen {
        let mut seen = Seen::default();
        (1..=position).for_each(|position| seen.given(Position(position), commit(position.into())));
        seen
    }

    #[test]
    fn a_server_with_the_same_history_refuses_nobody() {
        let mut seen = seen_up_to(3);
        seen.compare(Some(commit(3)));
        assert_eq!(seen.check(Position(3)), Ok(()));
    }

    #[test]
    fn who_stands_on_lost_commits_is_refused_until_they_were_read_anew() {
        for found in [None, Some(commit(33))] {
            let mut seen = seen_up_to(3);
            seen.compare(found);
            assert_eq!(seen.check(Position(3)).unwrap_err().fault, Fault::Diverged);
            assert_eq!(seen.check(Position(2)), Ok(()), "it may look at what is there instead");
            seen.given(Position(2), commit(2));
            assert!(seen.check(Position(3)).is_err(), "nobody has seen the other history yet");
            seen.given(Position(3), commit(33));
            assert_eq!(seen.check(Position(3)), Ok(()));
            assert_eq!(seen.last(), Some((Position(3), commit(33))));
        }
    }

    #[test]
    fn who_reads_old_commits_again_changes_nothing_but_what_was_read_most_recently() {
        let mut seen = seen_up_to(3);
        seen.given(Position(1), commit(11));
        assert_eq!(seen.last(), Some((Position(3), commit(3))));
        assert_eq!((seen.commit_at(Position(1)), seen.commit_at(Position(3))), (Some(commit(11)), None));
    }
}
