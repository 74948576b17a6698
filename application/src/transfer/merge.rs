//! Combines copies of one history, each of which may be damaged.
//!
//! At each position, an intact record that contains the hash of the record before it continues the history, whichever
//! copy it comes from. Copies that hold different intact records contradict each other; then only a head hash chooses.

use std::{mem, sync::Arc};

use async_trait::async_trait;

use super::intact::{IntactRecords, SalvagedLog};
use crate::{
    log::{commit::Commit, digest::Digest},
    ports::{Durability, Fault, LogError, LogSource, Position, ReadBound, StoredRecord},
};

/// Copies that cannot be combined. Each copy is named by its index.
#[derive(Debug)]
pub enum MergeError {
    /// A copy cannot be read, for another reason than damage.
    Copy(usize, LogError),
    /// Two copies hold different intact records at the same position.
    Contradiction(Box<[Found; 2]>),
    /// No history in the copies ends with this head hash.
    NoSuchHead(Digest),
}

/// An intact record, and the first copy that holds it.
#[derive(Debug)]
pub struct Found {
    /// The copy.
    pub copy: usize,
    /// The commit in the record.
    pub commit: Commit,
    hash: Digest,
    /// The last intact record of that copy, and its hash.
    pub last: (Position, Digest),
}

/// The history that copies hold together. A position that none of them holds is damaged.
pub struct MergedLog {
    copies: Vec<Arc<dyn LogSource>>,
    /// In order, without overlaps.
    runs: Vec<Run>,
    /// The last position that a copy is known to have had, or the one with the chosen head hash.
    last: Position,
}

/// Consecutive positions that are read from the same copy.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: Position,
    last: Position,
    copy: usize,
}

/// A possible history up to a position.
#[derive(Clone)]
struct Branch {
    runs: Vec<Run>,
    /// The hash of the last record; `None` after a gap, where any record may follow.
    hash: Option<Digest>,
}

impl Branch {
    fn follows(&self, found: &Found) -> bool {
        self.hash.is_none_or(|hash| hash == found.commit.previous)
    }

    fn with(mut self, found: &Found) -> Self {
        let position = found.commit.position;
        self.hash = Some(found.hash);
        match self.runs.last_mut() {
            Some(run) if run.copy == found.copy && run.last.next() == position => run.last = position,
            Some(_) | None => self.runs.push(Run { first: position, last: position, copy: found.copy }),
        }
        self
    }
}

/// Reads all copies, and combines them. Where several copies hold a record, it is taken from the first of them. With a
/// head hash, the history ends with the record that has this hash, and other histories are ignored.
pub async fn merge(
    copies: &[SalvagedLog],
    head: Option<Digest>,
    mut progress: impl FnMut(Position),
) -> Result<MergedLog, MergeError> {
    let last = copies.iter().map(|copy| copy.last_known).max().unwrap_or_default();
    let merged = |branch: Branch, last| {
        let copies = copies.iter().map(|copy| copy.log.clone()).collect();
        Ok(MergedLog { copies, runs: branch.runs, last })
    };
    let mut readers: Vec<_> = copies.iter().map(IntactRecords::of).collect();
    let mut ends = vec![(Position::START, Digest::of(b"")); copies.len()];
    let mut contradiction: Option<[Found; 2]> = None;
    // At most one for each copy: two branches never end with the same record.
    let mut branches = vec![Branch { runs: vec![], hash: Some(Digest::of(b"")) }];
    let mut before = Position::START;
    let mut pending: Vec<_> = copies.iter().map(|_| None).collect();
    loop {
        for (copy, reader) in readers.iter_mut().enumerate() {
            if pending[copy].is_none() {
                pending[copy] = reader.next().await.map_err(|error| MergeError::Copy(copy, error))?;
            }
        }
        let positions = pending.iter().flatten().map(|(record, _): &(StoredRecord, Commit)| record.position);
        let Some(position) = positions.min() else { break };
        if position > before.next() {
            if let [branch] = &mut branches[..] {
                branch.hash = None;
            } else {
                branches.clear();
            }
        }
        before = position;
        let mut found: Vec<Found> = vec![];
        for (copy, record) in pending.iter_mut().enumerate() {
            let Some((record, commit)) = record.take_if(|(record, _)| record.position == position) else {
                continue;
            };
            let hash = Digest::of(&record.bytes);
            ends[copy] = (position, hash);
            if found.iter().all(|other| other.hash != hash) {
                found.push(Found { copy, commit, hash, last: ends[copy] });
            }
        }
        let is_break = branches.len() == 1 && !found.iter().any(|found| branches[0].follows(found));
        for branch in mem::take(&mut branches) {
            let mut next: Vec<_> = found.iter().filter(|found| branch.follows(found)).collect();
            if is_break {
                // The readers of the merged log report it.
                next.push(&found[0]);
            }
            let Some(last) = next.pop() else { continue };
            branches.extend(next.into_iter().map(|found| branch.clone().with(found)));
            branches.push(branch.with(last));
        }
        if head.is_some()
            && let Some(chosen) = branches.iter().position(|branch| branch.hash == head)
        {
            return merged(branches.swap_remove(chosen), position);
        }
        if contradiction.is_none() && found.len() > 1 {
            found.truncate(2);
            contradiction = found.try_into().ok();
        }
        progress(position);
    }
    if let Some(head) = head {
        return Err(MergeError::NoSuchHead(head));
    }
    match (contradiction, branches.pop()) {
        (None, Some(branch)) => merged(branch, last),
        (Some(sides), _) => {
            let sides = sides.map(|side| Found { last: ends[side.copy], ..side });
            Err(MergeError::Contradiction(Box::new(sides)))
        }
        (None, None) => unreachable!("without a contradiction there is one branch"),
    }
}

impl MergedLog {
    /// The first and last positions of the records up to `end` that are read from this copy.
    pub fn read_from(&self, copy: usize, end: Position) -> Vec<(Position, Position)> {
        let runs = self.runs.iter().filter(|run| run.copy == copy && run.first <= end);
        runs.map(|run| (run.first, run.last.min(end))).collect()
    }
}

#[async_trait]
impl LogSource for MergedLog {
    async fn read(&self, after: Position, bound: ReadBound) -> Result<Vec<StoredRecord>, LogError> {
        let next = after.next();
        if next > self.last {
            return Ok(vec![]);
        }
        let run = self.runs.partition_point(|run| run.last < next);
        let Some(run) = self.runs.get(run).filter(|run| run.first <= next) else {
            return Err(Fault::Damaged.error(format!("no copy holds an intact commit for position {next}")));
        };
        let left = usize::try_from(run.last.0 - after.0).unwrap_or(usize::MAX);
        let bound = ReadBound { records: bound.records.min(left), ..bound };
        self.copies[run.copy].read(after, bound).await
    }

    async fn head(&self) -> Result<Position, LogError> {
        Ok(self.last)
    }

    async fn skip(&self, damaged: Position) -> Result<Position, LogError> {
        let run = self.runs.partition_point(|run| run.last <= damaged);
        Ok(self.runs.get(run).map_or(self.last, |run| run.first).max(damaged.next()))
    }

    fn durability(&self) -> Durability {
        self.copies[0].durability()
    }
}
