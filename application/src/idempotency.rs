//! Safe retries: a request with a key is executed once, however often it is sent.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
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
        Self::check(&key)?;
        Ok(Self(key))
    }

    /// Whether a text is a valid key, for those who need no copy of it.
    pub(crate) fn check(key: &str) -> Result<(), InvalidRequestKey> {
        let fits =
            (1..=Self::MAX_CHARS).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(()) } else { Err(InvalidRequestKey) }
    }

    /// The key as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a request key is looked up by: the keys of different owners have nothing to do with each other.
pub(crate) type Caller = (KeyId, RequestKey);

/// The answered requests, rebuilt from the log like everything else. Bounded in age and in number.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    owners: HashMap<KeyId, Answers>,
    /// Every owner, by the age of its oldest answer.
    by_age: BTreeSet<(u64, KeyId)>,
    /// Every owner, by the number of its answers.
    by_count: BTreeSet<(usize, KeyId)>,
    count: usize,
    /// Counts the answers that were ever remembered.
    last: u64,
}

/// The answers to the requests of one owner.
#[derive(Debug, Default)]
struct Answers {
    /// The number of the last answer to each key.
    numbers: HashMap<RequestKey, u64>,
    oldest_first: VecDeque<Answer>,
}

#[derive(Debug)]
struct Answer {
    number: u64,
    time: DateTime<Utc>,
    key: RequestKey,
    pet: Pet,
}

impl Answered {
    /// How long an answer is remembered, by the log clock: the same on every node and after every replay.
    pub(crate) const MEMORY: TimeDelta = TimeDelta::hours(24);
    /// How many answers are remembered at most. Beyond that, the owner with the most of them forgets its oldest.
    pub(crate) const MAX: usize = 1_000_000;

    /// What was answered to this request, if that is not too long ago at `now`.
    pub(crate) fn find(&self, (owner, key): &Caller, now: DateTime<Utc>) -> Option<&Pet> {
        let answers = self.owners.get(owner)?;
        let number = answers.numbers.get(key)?;
        let place = answers.oldest_first.binary_search_by_key(number, |answer| answer.number).ok()?;
        let answer = &answers.oldest_first[place];
        (now - answer.time < Self::MEMORY).then_some(&answer.pet)
    }

    /// Remembers an answer given at `time`, and forgets what is too old or too many by then.
    pub(crate) fn remember(&mut self, caller: Caller, pet: Pet, time: DateTime<Utc>) {
        self.remember_at_most(Self::MAX, caller, pet, time);
    }

    fn remember_at_most(&mut self, most: usize, (owner, key): Caller, pet: Pet, time: DateTime<Utc>) {
        while let Some((_, oldest)) = self.by_age.first().cloned()
            && self.owners[&oldest].oldest_first[0].time + Self::MEMORY <= time
        {
            self.forget_oldest_of(&oldest);
        }
        self.last += 1;
        let number = self.last;
        self.change(&owner, |answers| {
            answers.numbers.insert(key.clone(), number);
            answers.oldest_first.push_back(Answer { number, time, key, pet });
        });
        while self.count > most
            && let Some((_, owner)) = self.by_count.last().cloned()
        {
            self.forget_oldest_of(&owner);
        }
    }

    fn forget_oldest_of(&mut self, owner: &KeyId) {
        self.change(owner, |answers| {
            if let Some(oldest) = answers.oldest_first.pop_front()
                // The same key may have been used again after its first answer was forgotten.
                && answers.numbers.get(&oldest.key) == Some(&oldest.number)
            {
                answers.numbers.remove(&oldest.key);
            }
        });
    }

    /// Changes the answers of one owner, and keeps its place in the orders.
    fn change(&mut self, owner: &KeyId, change: impl FnOnce(&mut Answers)) {
        let mut answers = self.owners.remove(owner).unwrap_or_default();
        if let Some(oldest) = answers.oldest_first.front() {
            self.by_age.remove(&(oldest.number, owner.clone()));
            self.by_count.remove(&(answers.oldest_first.len(), owner.clone()));
        }
        self.count -= answers.oldest_first.len();
        change(&mut answers);
        self.count += answers.oldest_first.len();
        if let Some(oldest) = answers.oldest_first.front() {
            self.by_age.insert((oldest.number, owner.clone()));
            self.by_count.insert((answers.oldest_first.len(), owner.clone()));
            self.owners.insert(owner.clone(), answers);
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
    fn a_reply_is_remembered_for_a_day_and_no_longer() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        assert_eq!(answered.find(&caller("k", "a"), hour(23)), Some(&pet(1)));
        assert_eq!(answered.find(&caller("k", "a"), hour(24)), None);
    }

    #[test]
    fn each_reply_expires_at_its_own_time() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        answered.remember(caller("k", "b"), pet(2), hour(10));
        assert_eq!(answered.find(&caller("k", "a"), hour(30)), None);
        assert_eq!(answered.find(&caller("k", "b"), hour(30)), Some(&pet(2)));
        answered.remember(caller("k", "c"), pet(3), hour(30));
        let kept = &answered.owners[&KeyId("k".into())].numbers;
        assert_eq!(kept.len(), 2, "the expired one takes no memory beside those that have not expired");
    }

    #[test]
    fn expired_keys_take_no_memory() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        answered.remember(caller("k", "b"), pet(2), hour(24));
        assert_eq!((answered.count, answered.owners[&KeyId("k".into())].numbers.len()), (1, 1));
        answered.remember(caller("l", "c"), pet(3), hour(48));
        assert_eq!((answered.count, answered.owners.len()), (1, 1), "owners without answers are forgotten");
        assert_eq!((answered.by_age.len(), answered.by_count.len()), (1, 1));
    }

    #[test]
    fn a_key_used_again_after_a_day_is_remembered_again() {
        let mut answered = Answered::default();
        answered.remember(caller("k", "a"), pet(1), hour(0));
        answered.remember(caller("k", "a"), pet(2), hour(25));
        answered.remember(caller("k", "b"), pet(3), hour(26));
        assert_eq!(answered.find(&caller("k", "a"), hour(26)), Some(&pet(2)));
    }

    #[test]
    fn when_memory_is_full_the_owner_with_the_most_keys_forgets_its_oldest() {
        let mut answered = Answered::default();
        answered.remember_at_most(4, caller("quiet", "a"), pet(1), hour(0));
        for id in 2..=9 {
            answered.remember_at_most(4, caller("busy", &id.to_string()), pet(id), hour(1));
        }
        assert_eq!(answered.find(&caller("quiet", "a"), hour(1)), Some(&pet(1)), "it pays for nobody");
        let kept: Vec<_> =
            (2..=9).filter(|id| answered.find(&caller("busy", &id.to_string()), hour(1)).is_some()).collect();
        assert_eq!((kept, answered.count), (vec![7, 8, 9], 4));
    }

    #[test]
    fn among_owners_with_equally_many_keys_the_same_one_forgets_in_every_replay() {
        let replay = || {
            let mut answered = Answered::default();
            for (owner, id) in ["a", "b", "a", "b", "c"].into_iter().zip(1..) {
                answered.remember_at_most(4, caller(owner, &id.to_string()), pet(id), hour(0));
            }
            let known =
                |(owner, id): &(&str, i64)| answered.find(&caller(owner, &id.to_string()), hour(0)).is_some();
            [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5)].iter().filter(|each| known(each)).count()
        };
        assert_eq!((replay(), replay()), (4, 4));
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
