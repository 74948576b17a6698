//! The end of a partial copy, export or import: a position, or a time.

use chrono::{DateTime, Utc};

use super::{Tally, walk};
use crate::{
    log::commit::Commit,
    ports::{Fault, LogError, LogSource, Position},
};

/// Where a copy, an export or an import ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With the commit at this position.
    Position(Position),
    /// Before the first commit with a later time.
    Time(DateTime<Utc>),
}

/// Divides a history into the commits before an [`End`] and the rest. Without an end, there is no rest.
#[derive(Debug, Clone, Default)]
pub struct Cut {
    /// The end.
    pub end: Option<End>,
    /// The last commit before the end.
    pub last: Position,
    /// The first commit after the end, and its time.
    pub first_after: Option<(Position, DateTime<Utc>)>,
    /// The last commit that is not later than the time. It may be after the end, because clocks differ.
    pub last_in_time: Option<Position>,
}

impl Cut {
    /// Divides the history in a log, which is read up to its head if the end is a time.
    pub async fn of(log: &dyn LogSource, end: Option<End>) -> Result<Self, LogError> {
        let mut cut = Self { end, ..Self::default() };
        match end {
            None => {}
            Some(End::Time(_)) => {
                walk::<LogError>(log, &mut Tally::default(), async |_, commit| {
                    cut.takes(commit);
                    Ok(())
                })
                .await?;
            }
            Some(End::Position(end)) => cut.last = log.head().await?.min(end),
        }
        cut.check()?;
        Ok(cut)
    }

    /// An empty tally of the commits before the end.
    pub fn tally(&self) -> Tally {
        Tally::between(Position::START, self.end.map(|_| self.last))
    }

    /// Whether the next commit is before the end. The commits are passed in order.
    pub fn takes(&mut self, commit: &Commit) -> bool {
        let is_in_time = match self.end {
            None => true,
            Some(End::Position(end)) => commit.position <= end,
            Some(End::Time(end)) => commit.time <= end,
        };
        if is_in_time {
            self.last_in_time = Some(commit.position);
        } else if self.first_after.is_none() {
            self.first_after = Some((commit.position, commit.time));
        }
        if self.first_after.is_none() {
            self.last = commit.position;
        }
        self.first_after.is_none()
    }

    /// Checks that the history, all of which was passed, has the end.
    pub fn check(&self) -> Result<(), LogError> {
        let detail = match (self.end, self.last, self.first_after) {
            (Some(End::Position(end)), last, _) if last < end => {
                format!(
                    "the history ends at position {last}, before position {end}: choose an earlier position"
                )
            }
            (Some(End::Time(end)), Position::START, Some((_, first))) => format!(
                "the first commit has the time {first:?}, which is later than {end:?}: choose a later time"
            ),
            _ => return Ok(()),
        };
        Err(Fault::CannotOpen.error(detail))
    }
}
