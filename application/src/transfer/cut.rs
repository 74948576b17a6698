//! The end of a partial copy, export or import: a position, or a time.

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use thiserror::Error;

use super::{Tally, commit_at, walk};
use crate::{
    log::commit::{Commit, NodeId},
    ports::{Durability, LogError, LogSource, Position, ReadBound, StoredRecord},
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
    /// The last commit before the end, and its node.
    last: Option<(Position, NodeId)>,
    /// The first commit after the end, and its time.
    pub first_after: Option<(Position, DateTime<Utc>)>,
    /// The last commit that is not later than the time. It may be after the end, because clocks differ.
    pub last_in_time: Option<Position>,
}

/// An end that a history does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CutError {
    /// The history is shorter.
    #[error("the history ends at position {last}, before position {end}: choose an earlier position")]
    BeyondTheEnd {
        /// The wanted end.
        end: Position,
        /// The last position.
        last: Position,
    },
    /// No commit is before the time.
    #[error("the first commit has the time {first:?}, which is later than {end:?}: choose a later time")]
    BeforeTheStart {
        /// The wanted end.
        end: DateTime<Utc>,
        /// The time of the first commit.
        first: DateTime<Utc>,
    },
    /// The commits of a salvage around gaps are valid only as a whole.
    #[error(
        "position {0} is inside the commits of a salvage around gaps, which are valid only as a whole: choose a later end"
    )]
    InsideSalvage(Position),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl Cut {
    /// A division at this end.
    pub fn at(end: Option<End>) -> Self {
        Self { end, ..Self::default() }
    }

    /// Divides the history in a log, which is read up to its head if the end is a time.
    pub async fn of(log: &dyn LogSource, end: End) -> Result<Self, CutError> {
        let mut cut = Self::at(Some(end));
        match end {
            End::Time(_) => {
                walk::<LogError>(log, &mut Tally::default(), async |_, commit| {
                    cut.takes(commit);
                    Ok(())
                })
                .await?;
            }
            End::Position(end) => {
                let last = log.head().await?.min(end);
                if last > Position::START {
                    cut.takes(&commit_at(log, last).await?.1);
                }
            }
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
            self.last = Some((commit.position, commit.node));
        }
        self.first_after.is_none()
    }

    /// Checks that the history, all of which was passed, has the end.
    pub fn check(&self) -> Result<(), CutError> {
        let last = self.last();
        match (self.end, self.last, self.first_after) {
            (Some(End::Position(end)), _, _) if last < end => Err(CutError::BeyondTheEnd { end, last }),
            (Some(End::Time(end)), None, Some((_, first))) => Err(CutError::BeforeTheStart { end, first }),
            (Some(_), Some((last, NodeId::UNFINISHED_SALVAGE)), _) => Err(CutError::InsideSalvage(last)),
            _ => Ok(()),
        }
    }

    /// The last position before the end.
    pub fn last(&self) -> Position {
        self.last.map_or(Position::START, |(last, _)| last)
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
