//! Idempotency: a request with a key is executed once, however often it is sent.

use std::collections::{BTreeSet, HashMap, VecDeque};

use domain::Pet;

use crate::log::commit::{OwnerId, RequestKey};

/// The pets that were added for requests with a key. Equal keys of different owners are independent.
///
/// It is rebuilt from the log and depends on the log alone, not on a clock. When it is full, the owner with the most
/// keys loses its oldest one; among owners with equally many, the one with the greatest id does. So a key is kept until
/// its own owner has stored about `capacity / owners` newer ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyCache {
    capacity: usize,
    owners: HashMap<OwnerId, OwnerEntries>,
    /// Every owner by its number of keys. The last one loses a key when the cache is full.
    by_count: BTreeSet<(usize, OwnerId)>,
    len: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct OwnerEntries {
    pets: HashMap<RequestKey, Pet>,
    oldest_first: VecDeque<RequestKey>,
}

impl Default for IdempotencyCache {
    fn default() -> Self {
        Self::with_capacity(Self::CAPACITY)
    }
}

impl IdempotencyCache {
    pub(crate) const CAPACITY: usize = 1_000_000;

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { capacity, owners: HashMap::new(), by_count: BTreeSet::new(), len: 0 }
    }

    /// Returns the pet that was added under this key, if the key is remembered.
    pub(crate) fn find(&self, owner: &OwnerId, key: &RequestKey) -> Option<&Pet> {
        self.owners.get(owner)?.pets.get(key)
    }

    /// Remembers the pet that was added under this key. If the key is remembered already, its age does not change.
    pub(crate) fn insert(&mut self, owner: &OwnerId, key: &RequestKey, pet: Pet) {
        let entries = self.owners.entry(owner.clone()).or_default();
        if entries.pets.insert(key.clone(), pet).is_some() {
            return;
        }
        entries.oldest_first.push_back(key.clone());
        let count = entries.oldest_first.len();
        self.by_count.remove(&(count - 1, owner.clone()));
        self.by_count.insert((count, owner.clone()));
        self.len += 1;
        if self.len > self.capacity {
            self.evict();
        }
    }

    /// Forgets the oldest key of the owner with the most keys.
    fn evict(&mut self) {
        let Some((count, owner)) = self.by_count.pop_last() else { return };
        let entries = self.owners.get_mut(&owner).expect("every owner in by_count has entries");
        if let Some(oldest) = entries.oldest_first.pop_front() {
            entries.pets.remove(&oldest);
        }
        self.len -= 1;
        if count > 1 {
            self.by_count.insert((count - 1, owner));
        } else {
            self.owners.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::test_values::{self, numbered};
    use proptest::prelude::*;

    use super::*;

    fn pet(id: i64) -> Pet {
        test_values::pet(id, numbered(id.cast_unsigned()))
    }

    type ScopedKey = (OwnerId, RequestKey);

    fn scoped(owner: &str, key: &impl ToString) -> ScopedKey {
        (OwnerId(owner.into()), RequestKey::new(key.to_string()).unwrap())
    }

    fn find(cache: &IdempotencyCache, (owner, key): &ScopedKey) -> Option<Pet> {
        cache.find(owner, key).cloned()
    }

    #[test]
    fn among_owners_with_equally_many_keys_the_one_with_the_greatest_id_loses_its_oldest() {
        let mut cache = IdempotencyCache::with_capacity(4);
        for (owner, id) in ["a", "b", "a", "b", "c"].into_iter().zip(1..) {
            let (owner, key) = scoped(owner, &id);
            cache.insert(&owner, &key, pet(id));
        }
        let known = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5)]
            .map(|(owner, id)| find(&cache, &scoped(owner, &id)).is_some());
        assert_eq!(known, [true, false, true, true, true]);
    }

    #[test]
    fn a_forgotten_key_and_an_owner_without_keys_take_no_memory() {
        let mut cache = IdempotencyCache::with_capacity(1);
        for (owner, id) in ["a", "a", "b", "a"].into_iter().zip(1..) {
            let (owner, key) = scoped(owner, &id);
            cache.insert(&owner, &key, pet(id));
        }
        let entries = cache.owners.values().map(|entries| (entries.pets.len(), entries.oldest_first.len()));
        assert_eq!(entries.collect::<Vec<_>>(), [(1, 1)]);
        assert_eq!((cache.len, cache.by_count.len()), (1, 1));
    }

    /// The rule, written down as simply as possible: all entries in the order of the log.
    #[derive(Default)]
    struct Model(Vec<(ScopedKey, Pet)>);

    impl Model {
        fn insert(&mut self, capacity: usize, key: ScopedKey, pet: Pet) {
            if let Some((_, known)) = self.0.iter_mut().find(|(known, _)| *known == key) {
                *known = pet;
                return;
            }
            self.0.push((key, pet));
            if self.0.len() > capacity {
                let count = |owner: &OwnerId| self.0.iter().filter(|((by, _), _)| by == owner).count();
                let owners = self.0.iter().map(|((owner, _), _)| owner.clone());
                let most = owners.max_by_key(|owner| (count(owner), owner.clone())).unwrap();
                let oldest = self.0.iter().position(|((owner, _), _)| *owner == most).unwrap();
                self.0.remove(oldest);
            }
        }
    }

    proptest! {
        #[test]
        fn the_cache_holds_what_the_rule_says(
            capacity in 1..8_usize,
            requests in prop::collection::vec((0..4_usize, 0..12_u8), 0..60),
        ) {
            let mut cache = IdempotencyCache::with_capacity(capacity);
            let mut model = Model::default();
            for ((owner, key), id) in requests.iter().zip(1..) {
                let key = scoped(["a", "b", "c", "d"][*owner], key);
                cache.insert(&key.0, &key.1, pet(id));
                model.insert(capacity, key, pet(id));
            }
            prop_assert_eq!(cache.len, model.0.len());
            prop_assert_eq!(cache.by_count.len(), cache.owners.len(), "every owner has one count");
            for (key, pet) in &model.0 {
                prop_assert_eq!(find(&cache, key), Some(pet.clone()));
            }
        }

        #[test]
        fn no_owner_loses_a_key_while_it_has_no_more_than_its_share(
            share in 1..6_usize,
            requests in prop::collection::vec(0..4_usize, 0..200),
        ) {
            let owners = ["a", "b", "c", "d"];
            let mut cache = IdempotencyCache::with_capacity(share * owners.len());
            for (owner, id) in requests.iter().zip(1..) {
                let (owner, key) = scoped(owners[*owner], &id);
                cache.insert(&owner, &key, pet(id));
            }
            for (index, owner) in owners.iter().enumerate() {
                let keys = requests.iter().zip(1..).filter(|(by, _)| **by == index).map(|(_, id)| id);
                for id in keys.collect::<Vec<i64>>().iter().rev().take(share) {
                    prop_assert_eq!(find(&cache, &scoped(owner, id)), Some(pet(*id)), "key {} of {}", id, owner);
                }
            }
        }
    }
}
