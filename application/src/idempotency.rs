//! Safe retries: a request that carries a key is carried out once, however often it is sent.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use chrono::{DateTime, TimeDelta, Utc};
use domain::Pet;
use thiserror::Error;

use crate::principal::KeyId;

/// Names a request so that it can be repeated: 1 to 255 visible ASCII characters, chosen by the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestKey(Arc<str>);

/// A text that cannot name a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("must be 1 to {max} visible ASCII characters", max = RequestKey::MAX_CHARS)]
pub struct InvalidRequestKey;

impl RequestKey {
    /// The longest key.
    pub const MAX_CHARS: usize = 255;

    /// Accepts 1 to 255 visible ASCII characters.
    pub fn new(key: impl Into<Arc<str>>) -> Result<Self, InvalidRequestKey> {
        let key = key.into();
        let fits =
            (1..=Self::MAX_CHARS).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(key)) } else { Err(InvalidRequestKey) }
    }

    /// The key as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a request key is looked up by: keys of different callers have nothing to do with each other.
pub(crate) type Caller = (KeyId, RequestKey);

/// The answered requests, rebuilt from the log like everything else. Bounded in age and in number.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    pets: HashMap<Caller, (DateTime<Utc>, Pet)>,
    oldest_first: VecDeque<(DateTime<Utc>, Caller)>,
}

impl Answered {
    /// How long an answer is remembered, in commit time: the same on every node and after every replay.
    pub(crate) const MEMORY: TimeDelta = TimeDelta::hours(24);
    /// How many answers are remembered at most; beyond that the oldest are forgotten first.
    pub(crate) const MAX: usize = 1_000_000;

    /// What was answered to this request, if that is not too long ago at `now`.
    pub(crate) fn find(&self, caller: &Caller, now: DateTime<Utc>) -> Option<&Pet> {
        self.pets.get(caller).filter(|(answered, _)| now - *answered < Self::MEMORY).map(|(_, pet)| pet)
    }

    /// Takes note of an answer given at `time`, and forgets what is too old or too many by then.
    pub(crate) fn remember(&mut self, caller: Caller, pet: Pet, time: DateTime<Utc>) {
        self.pets.insert(caller.clone(), (time, pet));
        self.oldest_first.push_back((time, caller));
        while self.oldest_first.len() > Self::MAX
            || self.oldest_first.front().is_some_and(|(answered, _)| time - *answered >= Self::MEMORY)
        {
            let Some((answered, caller)) = self.oldest_first.pop_front() else { break };
            // The same key may have been used again after its first answer was forgotten.
            if self.pets.get(&caller).is_some_and(|(latest, _)| *latest == answered) {
                self.pets.remove(&caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{CategoryId, NewPet, PetId, PetName};

    use super::*;

    fn pet(id: i64) -> Pet {
        let details = NewPet { name: PetName::new("Rex").unwrap(), category_id: CategoryId(1), status: None };
        Pet { id: PetId::new(id).unwrap(), details }
    }

    fn caller(by: &str, key: &str) -> Caller {
        (KeyId(by.into()), RequestKey::new(key).unwrap())
    }

    fn hour(hour: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::hours(hour)
    }

    #[test]
    fn an_answer_is_remembered_for_a_day_and_no_longer() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        assert_eq!(answered.find(&caller("k", "a"), hour(23)), Some(&pet(1)));
        assert_eq!(answered.find(&caller("k", "a"), hour(24)), None);
    }

    #[test]
    fn what_is_too_old_takes_no_memory() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        answered.remember(caller("k", "b"), pet(2), hour(24));
        assert_eq!((answered.pets.len(), answered.oldest_first.len()), (1, 1));
    }

    #[test]
    fn a_key_used_again_after_a_day_is_remembered_anew() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        answered.remember(caller("k", "a"), pet(2), hour(25));
        answered.remember(caller("k", "b"), pet(3), hour(26));
        assert_eq!(answered.find(&caller("k", "a"), hour(26)), Some(&pet(2)));
    }

    #[test]
    fn keys_of_different_callers_are_independent() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        assert_eq!(answered.find(&caller("other", "a"), hour(0)), None);
    }

    #[test]
    fn only_visible_ascii_names_a_request() {
        let longest = "x".repeat(255);
        for good in ["a", "~", "!", "550e8400-e29b", longest.as_str()] {
            assert!(RequestKey::new(good).is_ok(), "{good}");
        }
        let too_long = "x".repeat(256);
        for bad in ["", " ", "a b", "ä", "\u{7f}", too_long.as_str()] {
            assert!(RequestKey::new(bad).is_err(), "{bad}");
        }
    }
}
