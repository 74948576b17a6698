//! An index from statuses to slots or chunks: one bit for each, so that the next match is found without scanning.

use domain::PetStatus;

/// A set of numbers for each status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ByStatus([Bitmap; PetStatus::ALL.len()]);

impl ByStatus {
    /// Adds a number to the set of this status.
    pub(super) fn insert(&mut self, number: usize, status: PetStatus) {
        self.0[status as usize].insert(number);
    }

    /// The first number from `from` on with this status.
    pub(super) fn next(&self, from: usize, status: PetStatus) -> Option<usize> {
        self.0[status as usize].next(from)
    }

    /// The status of a number, which has at most one.
    pub(super) fn of(&self, number: usize) -> Option<PetStatus> {
        PetStatus::ALL.into_iter().find(|status| self.0[*status as usize].contains(number))
    }
}

/// A set of small numbers, one bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bitmap(Vec<u64>);

impl Bitmap {
    const WORD: usize = u64::BITS as usize;

    fn insert(&mut self, number: usize) {
        let word = number / Self::WORD;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % Self::WORD);
    }

    fn contains(&self, number: usize) -> bool {
        self.0.get(number / Self::WORD).is_some_and(|word| word & (1 << (number % Self::WORD)) != 0)
    }

    fn next(&self, from: usize) -> Option<usize> {
        let mut place = from / Self::WORD;
        let mut word = self.0.get(place)? & (u64::MAX << (from % Self::WORD));
        while word == 0 {
            place += 1;
            word = *self.0.get(place)?;
        }
        Some(place * Self::WORD + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bitmap_is_an_ordered_set(numbers in prop::collection::btree_set(0..300_usize, 0..40), from in 0..400_usize) {
            let mut bitmap = Bitmap::default();
            for number in &numbers {
                bitmap.insert(*number);
            }
            prop_assert_eq!(bitmap.next(from), numbers.range(from..).next().copied());
            let found: BTreeSet<_> = (0..400).filter(|number| bitmap.contains(*number)).collect();
            prop_assert_eq!(found, numbers);
        }
    }
    const COUNTS: [usize; 6] = [1, 63, 64, 65, 128, 130];

    #[test]
    fn every_number_has_its_status() {
        let status = |number: usize| PetStatus::ALL.get(number % 4).copied();
        for count in COUNTS {
            let mut by_status = ByStatus::default();
            for (number, status) in (0..count).filter_map(|number| Some((number, status(number)?))) {
                by_status.insert(number, status);
            }
            for number in 0..count {
                assert_eq!(by_status.of(number), status(number), "{number} of {count}");
                for wanted in PetStatus::ALL {
                    let next = (number..count).find(|number| status(*number) == Some(wanted));
                    assert_eq!(by_status.next(number, wanted), next, "from {number} of {count}");
                }
            }
        }
    }
}
