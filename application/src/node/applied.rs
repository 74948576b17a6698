//! The last applied position, and the requests that wait for a later one. A commit wakes only the requests that it
//! satisfies, however many others wait.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::oneshot;

use crate::{log::commit::OwnerId, ports::Position};

/// The maximum number of requests of one owner that wait at the same time.
pub(crate) const WAITS_MAX: usize = 1_000;

/// The commit was not applied in time, belongs to a different history, or cannot be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this node has not applied that commit")]
pub struct NotCaughtUp;

#[derive(Debug, Default)]
pub(crate) struct Applied(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    position: Position,
    /// The number of the next wait, which distinguishes waits for the same position.
    next: u64,
    waits: BTreeMap<(Position, u64), oneshot::Sender<()>>,
    per_owner: HashMap<OwnerId, usize>,
}

impl Applied {
    /// Every commit up to this one is applied.
    pub(crate) fn reach(&self, position: Position) {
        let mut state = self.0.lock();
        state.position = position;
        while let Some(first) = state.waits.first_entry().filter(|first| first.key().0 <= position) {
            // Fails if the request has just stopped waiting.
            let _ = first.remove().send(());
        }
    }

    /// Begins to wait for a position. Returns `None` if it is applied already.
    pub(crate) fn wait_for(&self, position: Position, by: &OwnerId) -> Result<Option<Wait<'_>>, NotCaughtUp> {
        let mut state = self.0.lock();
        if position <= state.position {
            return Ok(None);
        }
        let waiting = state.per_owner.entry(by.clone()).or_default();
        if *waiting == WAITS_MAX {
            return Err(NotCaughtUp);
        }
        *waiting += 1;
        let (reached, receiver) = oneshot::channel();
        let key = (position, state.next);
        state.next += 1;
        state.waits.insert(key, reached);
        Ok(Some(Wait { applied: self, key, by: by.clone(), reached: receiver }))
    }
}

/// A request that waits, until this is dropped.
pub(crate) struct Wait<'a> {
    applied: &'a Applied,
    key: (Position, u64),
    by: OwnerId,
    reached: oneshot::Receiver<()>,
}

impl Wait<'_> {
    /// Resolves when the position is applied.
    pub(crate) async fn reached(mut self) {
        (&mut self.reached).await.expect("a wait is removed only when it is reached or dropped");
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = self.applied.0.lock();
        state.waits.remove(&self.key);
        if let Some(waiting) = state.per_owner.get_mut(&self.by) {
            *waiting -= 1;
            if *waiting == 0 {
                state.per_owner.remove(&self.by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> OwnerId {
        OwnerId(name.into())
    }

    #[test]
    fn a_commit_wakes_only_the_requests_that_it_satisfies() {
        let (applied, owner) = (Applied::default(), owner("a"));
        let mut waits =
            [3, 1, 2].map(|position| applied.wait_for(Position(position), &owner).unwrap().unwrap());

        applied.reach(Position(2));
        let woken = waits.each_mut().map(|wait| wait.reached.try_recv().is_ok());
        assert_eq!(woken, [false, true, true]);
        assert!(applied.wait_for(Position(2), &owner).unwrap().is_none(), "it is applied");

        drop(waits);
        let state = applied.0.lock();
        assert!(state.waits.is_empty() && state.per_owner.is_empty());
    }

    #[test]
    fn one_owner_cannot_take_the_waits_of_another() {
        let applied = Applied::default();
        let wait = |name: &str| applied.wait_for(Position(1), &owner(name)).map(Option::unwrap);
        let mut waits = (0..WAITS_MAX).map(|_| wait("greedy").unwrap()).collect::<Vec<_>>();
        assert!(wait("greedy").is_err());
        assert!(wait("modest").is_ok());
        waits.pop();
        assert!(wait("greedy").is_ok());
    }
}
