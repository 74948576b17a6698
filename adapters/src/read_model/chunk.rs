//! A chunk of a few thousand pets, at about 22 bytes each with a name of 11 characters; a `Pet` takes 84. Nothing in it
//! moves when a pet is added.

use domain::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};

use super::by_status::ByStatus;

/// Pets in ascending id order.
#[derive(Debug, Default)]
pub(super) struct PetChunk {
    /// The runs of consecutive ids. The first run starts at slot 0; ids without gaps are a single run.
    runs: Vec<Run>,
    categories: Vec<CategoryId>,
    /// The end of each pet's name in `names`; it starts where the previous one ends.
    ends: Vec<u16>,
    names: String,
    /// The slots with each status.
    by_status: ByStatus,
}

/// A run of consecutive ids, from this slot and id up to the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    slot: u16,
    id: i64,
}

impl PetChunk {
    /// The maximum number of pets: few enough that a slot fits into two bytes, enough that the overhead of a chunk is
    /// negligible.
    const PETS_MAX: usize = 4_096;
    /// The maximum size of the names, so that an end fits into two bytes.
    const NAMES_MAX: usize = u16::MAX as usize;

    /// Whether the pet fits.
    pub(super) fn has_room_for(&self, pet: &Pet) -> bool {
        self.len() < Self::PETS_MAX && self.names.len() + pet.details.name.as_str().len() <= Self::NAMES_MAX
    }

    /// Adds a pet, which must fit, and whose id must be greater than all others.
    pub(super) fn push(&mut self, Pet { id, details: NewPet { name, category_id, status } }: &Pet) {
        let (slot, id) = (self.len(), id.get());
        if self.runs.last().is_none_or(|run| run.id + i64::from(narrow(slot) - run.slot) != id) {
            self.runs.push(Run { slot: narrow(slot), id });
        }
        self.categories.push(*category_id);
        self.names.push_str(name.as_str());
        self.ends.push(narrow(self.names.len()));
        if let Some(status) = status {
            self.by_status.insert(slot, *status);
        }
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        self.runs.shrink_to_fit();
        self.categories.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The first slot with a greater id, or the number of pets if there is none.
    pub(super) fn slot_after(&self, id: i64) -> usize {
        let next_run = self.runs.partition_point(|run| run.id <= id);
        let Some(run) = next_run.checked_sub(1).map(|run| self.runs[run]) else { return 0 };
        let end = self.runs.get(next_run).map_or(self.len(), |next| next.slot.into());
        let passed = usize::try_from(id - run.id).unwrap_or(usize::MAX).saturating_add(1);
        end.min(usize::from(run.slot).saturating_add(passed))
    }

    /// The slot of the pet with this id.
    pub(super) fn slot_of(&self, id: PetId) -> Option<usize> {
        let slot = self.slot_after(id.get()).checked_sub(1)?;
        (self.id(slot) == id.get()).then_some(slot)
    }

    /// The first slot from `from` on that holds a pet; with a status, a pet that has it.
    pub(super) fn next(&self, from: usize, status: Option<PetStatus>) -> Option<usize> {
        match status {
            None => Some(from).filter(|slot| *slot < self.len()),
            Some(status) => self.by_status.next(from, status),
        }
    }

    /// The pet in this slot, which must not be empty.
    pub(super) fn pet(&self, slot: usize) -> Pet {
        let begin = slot.checked_sub(1).map_or(0, |before| self.ends[before].into());
        let name = PetName::of_checked(&self.names[begin..self.ends[slot].into()]);
        let id = PetId::new(self.id(slot)).expect("only ids of pets are added");
        let (category_id, status) = (self.categories[slot], self.by_status.of(slot));
        Pet { id, details: NewPet { name, category_id, status } }
    }

    fn id(&self, slot: usize) -> i64 {
        let run = match &*self.runs {
            [only] => only,
            runs => &runs[runs.partition_point(|run| usize::from(run.slot) <= slot) - 1],
        };
        run.id + i64::from(narrow(slot) - run.slot)
    }
}

/// Converts a slot or an end, which fit into two bytes by the limits of a chunk.
fn narrow(place: usize) -> u16 {
    u16::try_from(place).expect("a chunk is full before that")
}

#[cfg(test)]
mod tests {
    use domain::test_values::{named, pet};

    use super::*;

    #[test]
    fn ids_at_the_end_of_their_range_are_found() {
        let mut chunk = PetChunk::default();
        for id in [i64::MAX - 3, i64::MAX - 1, i64::MAX] {
            chunk.push(&pet(id, named("Rex")));
        }
        let after = |id| chunk.slot_after(id);
        assert_eq!([0, i64::MAX - 4, i64::MAX - 3, i64::MAX - 2, i64::MAX].map(after), [0, 0, 1, 1, 3]);
        let found = [3, 2, 1, 0].map(|back| chunk.slot_of(PetId::new(i64::MAX - back).unwrap()));
        assert_eq!(found, [Some(0), None, Some(1), Some(2)]);
    }
    #[test]
    fn a_chunk_is_full_when_it_has_enough_pets_or_enough_text() {
        for (name, pets) in [("a", 4_096), (&*"a".repeat(100), 655)] {
            let mut chunk = PetChunk::default();
            while chunk.has_room_for(&pet(1, named(name))) {
                let id = i64::try_from(chunk.len()).unwrap() + 1;
                chunk.push(&pet(id, named(name)));
            }
            assert_eq!(chunk.len(), pets, "pets with {} bytes each", name.len());
        }
    }

    #[test]
    fn ids_without_gaps_are_one_run() {
        let mut chunk = PetChunk::default();
        for id in [5, 6, 7, 9, 10] {
            chunk.push(&pet(id, named("Rex")));
        }
        assert_eq!(chunk.runs, [Run { slot: 0, id: 5 }, Run { slot: 3, id: 9 }]);
        chunk.shrink();
        let capacities = (chunk.categories.capacity(), chunk.ends.capacity(), chunk.names.capacity());
        assert_eq!(capacities, (chunk.len(), chunk.len(), chunk.names.len()));
    }

    #[test]
    fn the_next_pet_is_found_from_a_slot_and_by_status() {
        let mut chunk = PetChunk::default();
        for (id, status) in [(1, None), (2, Some(PetStatus::Sold)), (3, None)] {
            chunk.push(&pet(id, NewPet { status, ..named("Rex") }));
        }
        assert_eq!([0, 2, 3, 4].map(|from| chunk.next(from, None)), [Some(0), Some(2), None, None]);
        let sold = [0, 1, 2].map(|from| chunk.next(from, Some(PetStatus::Sold)));
        assert_eq!(sold, [Some(1), Some(1), None]);
    }
}
