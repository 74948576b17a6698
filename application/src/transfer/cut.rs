//! The end of a partial copy, export or import: a position, or a time.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use thiserror::Error;

use super::{Tally, not_visible, walk};
use crate::{
    log::{
        codec,
        commit::{Commit, NodeId},
    },
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
    end: Option<End>,
    /// The last commit before the end, and its node.
    last: Option<(Position, NodeId)>,
    first_after: Option<(Position, DateTime<Utc>)>,
    /// The last commit that is not later than the time. It may be after the end, because clocks differ.
    last_in_time: Option<Position>,
}

/// The division at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeCut {
    /// The time.
    pub time: DateTime<Utc>,
    /// The last position before the end.
    pub last: Position,
    /// The first commit with a later time; `None` if no commit is later.
    pub first_later: Option<(Position, DateTime<Utc>)>,
    /// The last position whose commit is not later.
    pub last_in_time: Position,
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
                    let found = log.read(last.before(), ReadBound::ONE).await?;
                    let record = found.first().ok_or_else(|| not_visible(last))?;
                    cut.takes(&codec::decode_stored(record)?);
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

    /// The division at a time; `None` if the end is not a time or there are no commits.
    pub fn time_cut(&self) -> Option<TimeCut> {
        let Some(End::Time(time)) = self.end else { return None };
        let last_in_time = self.last_in_time?;
        Some(TimeCut { time, last: self.last(), first_later: self.first_after, last_in_time })
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

    async fn wait_for(&self, _: Position, _: Duration) -> Result<(), LogError> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.log.durability()
    }
}
