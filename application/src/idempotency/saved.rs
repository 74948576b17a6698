//! The answered requests in a snapshot. They are copied in small steps, so that no writer waits for long, and still all of
//! one moment.

use chrono::{DateTime, Utc};
use domain::Pet;

use super::{Answer, Answered, RequestKey};
use crate::principal::KeyId;

/// How many answers are copied at a time: a fraction of a millisecond.
const STEP: usize = 512;

/// One remembered answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedAnswer {
    pub(crate) owner: KeyId,
    /// Counts all answers that were ever remembered, which is the order that they are forgotten in.
    pub(crate) number: u64,
    pub(crate) time: DateTime<Utc>,
    pub(crate) key: RequestKey,
    pub(crate) pet: Pet,
}

/// How far the copying of answers has come.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The owners whose answers are still to be copied, the next one last.
    owners: Vec<KeyId>,
    /// The last answer of the next owner that was copied.
    copied: u64,
}

/// The answers that a snapshot consists of: those up to a number, also the ones that are forgotten before they are copied.
#[derive(Debug)]
pub(super) struct Saving {
    last: u64,
    forgotten: Vec<SavedAnswer>,
}

impl Saving {
    pub(super) fn keep(&mut self, owner: &KeyId, answer: Answer) {
        if answer.number <= self.last {
            self.forgotten.push(saved(owner, answer));
        }
    }
}

impl Answered {
    /// How many answers were ever remembered.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Keeps the answers of this moment until [`end_saving`](Self::end_saving).
    pub(crate) fn begin_saving(&mut self) -> Cursor {
        self.saving = Some(Saving { last: self.last, forgotten: Vec::new() });
        let mut owners: Vec<_> = self.owners.keys().cloned().collect();
        // The same answers are written down the same way.
        owners.sort_unstable_by(|one, other| other.cmp(one));
        Cursor { owners, copied: 0 }
    }

    /// Copies some more answers, all of one owner. `None` if they are no longer kept, because everything was forgotten for
    /// another log; empty if there are no more.
    pub(crate) fn copy_some(&self, cursor: &mut Cursor) -> Option<Vec<SavedAnswer>> {
        let last = self.saving.as_ref()?.last;
        while let Some(owner) = cursor.owners.last() {
            let answers = self.owners.get(owner).map(|answers| &answers.oldest_first);
            let copied: Vec<_> = answers
                .map(|answers| {
                    let start = answers.partition_point(|answer| answer.number <= cursor.copied);
                    let rest = answers.range(start..).take(STEP).take_while(|answer| answer.number <= last);
                    rest.map(|answer| saved(owner, answer.clone())).collect()
                })
                .unwrap_or_default();
            if let Some(newest) = copied.last() {
                cursor.copied = newest.number;
                return Some(copied);
            }
            cursor.owners.pop();
            cursor.copied = 0;
        }
        Some(Vec::new())
    }

    /// Lets go of what was kept, and returns the answers of that moment that were forgotten since. Some of them may have been
    /// copied before.
    pub(crate) fn end_saving(&mut self) -> Option<Vec<SavedAnswer>> {
        self.saving.take().map(|saving| saving.forgotten)
    }

    /// The state that these answers were copied from. They may come in any order, and one may come twice.
    pub(crate) fn load(last: u64, saved: impl IntoIterator<Item = SavedAnswer>) -> Self {
        let mut loaded = Self { last, ..Self::default() };
        for SavedAnswer { owner, number, time, key, pet } in saved {
            let answers = loaded.owners.entry(owner).or_default();
            answers.oldest_first.push_back(Answer { number, time, key, pet });
        }
        for (owner, answers) in &mut loaded.owners {
            let in_order = answers.oldest_first.make_contiguous();
            if !in_order.is_sorted_by(|one, next| one.number < next.number) {
                in_order.sort_unstable_by_key(|answer| answer.number);
                let mut last = 0;
                answers
                    .oldest_first
                    .retain(|answer| std::mem::replace(&mut last, answer.number) < answer.number);
            }
            let numbers = answers.oldest_first.iter().map(|answer| (answer.key.clone(), answer.number));
            answers.numbers.extend(numbers);
            if let Some(oldest) = answers.oldest_first.front() {
                loaded.by_age.insert((oldest.number, owner.clone()));
                loaded.by_count.insert((answers.oldest_first.len(), owner.clone()));
            }
            loaded.count += answers.oldest_first.len();
        }
        loaded
    }
}

fn saved(owner: &KeyId, answer: Answer) -> SavedAnswer {
    let Answer { number, time, key, pet } = answer;
    SavedAnswer { owner: owner.clone(), number, time, key, pet }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use domain::{CategoryId, NewPet, PetId, PetName};
    use proptest::prelude::*;

    use super::*;

    fn pet(id: i64) -> Pet {
        let details = NewPet { name: PetName::new("Rex").unwrap(), category_id: CategoryId(1), status: None };
        Pet { id: PetId::new(id).unwrap(), details }
    }

    /// Remembers a request of one of a few owners, under one of a few keys, some time after the one before.
    fn remember(answered: &mut Answered, time: &mut DateTime<Utc>, (owner, key, hours): (u8, u8, i64)) {
        *time += TimeDelta::hours(hours);
        let caller = (KeyId(owner.to_string().into()), RequestKey::new(key.to_string()).unwrap());
        let id = i64::try_from(answered.last).unwrap() + 1;
        answered.remember_at_most(12, caller, pet(id), *time);
    }

    fn all(answered: &mut Answered) -> Vec<SavedAnswer> {
        let mut cursor = answered.begin_saving();
        let mut all = Vec::new();
        while let Some(some) = answered.copy_some(&mut cursor).filter(|some| !some.is_empty()) {
            all.extend(some);
        }
        answered.end_saving();
        all
    }

    fn requests() -> impl Strategy<Value = Vec<(u8, u8, i64)>> {
        prop::collection::vec((0..4_u8, 0..8_u8, prop_oneof![9 => 0..3_i64, 1 => 0..40_i64]), 0..60)
    }

    proptest! {
        #[test]
        fn what_is_copied_is_of_one_moment_whatever_is_remembered_and_forgotten_meanwhile(
            before in requests(), during in requests(), after in requests(),
        ) {
            let (mut answered, mut time) = (Answered::default(), DateTime::UNIX_EPOCH);
            for request in before {
                remember(&mut answered, &mut time, request);
            }
            let (expected, last) = (all(&mut answered), answered.last());
            let mut cursor = answered.begin_saving();
            let (mut copied, mut of_loaded) = (Vec::new(), time);
            for request in during.clone() {
                copied.extend(answered.copy_some(&mut cursor).unwrap());
                remember(&mut answered, &mut time, request);
            }
            while let Some(some) = answered.copy_some(&mut cursor).filter(|some| !some.is_empty()) {
                copied.extend(some);
            }
            copied.extend(answered.end_saving().unwrap());
            let mut loaded = Answered::load(last, copied);
            prop_assert_eq!(all(&mut loaded), expected);
            // It goes on like the one that it was copied from.
            for request in during.into_iter().chain(after.clone()) {
                remember(&mut loaded, &mut of_loaded, request);
            }
            for request in after {
                remember(&mut answered, &mut time, request);
            }
            prop_assert_eq!(loaded.count, answered.count);
            prop_assert_eq!(&loaded.by_age, &answered.by_age);
            prop_assert_eq!(&loaded.by_count, &answered.by_count);
            prop_assert_eq!(all(&mut loaded), all(&mut answered));
        }
    }
}
