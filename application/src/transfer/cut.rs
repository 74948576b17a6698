//! The end of a partial copy, export or import: a position, or a time.

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{Tally, walk};
use crate::{
    log::commit::Commit,
    ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
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
    /// A division at this end.
    pub fn at(end: Option<End>) -> Self {
        Self { end, ..Self::default() }
    }

    /// Divides the history in a log, which is read up to its head if the end is a time.
    pub async fn of(log: &dyn LogSource, end: End) -> Result<Self, LogError> {
        let mut cut = Self::at(Some(end));
        match end {
            End::Time(_) => {
                walk::<LogError>(log, &mut Tally::default(), async |_, commit| {
                    cut.takes(commit);
                    Ok(())
                })
                .await?;
            }
            End::Position(end) => cut.last = log.head().await?.min(end),
        }
        cut.check()?;
        Ok(cut)
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

/// The beginning of a log, up to a position that the log holds.
pub struct Beginning {
    /// The log.
    pub log: Arc<dyn LogSource>,
    /// The last position.
    pub last: Position,
}

#[async_trait]
impl LogSource for Beginning {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        match usize::try_from(self.last.0.saturating_sub(after.0)) {
            Ok(0) => Ok(vec![]),
            left => {
                let records = bound.records.min(left.unwrap_or(usize::MAX));
                self.log.read(after, ReadBound { records, ..bound }).await
            }
        }
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.last)
    }

    fn durability(&self) -> Durability {
        self.log.durability()
    }
}
