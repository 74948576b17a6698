//! A chunk of a thousand pets, at about 22 bytes each with a name of 11 characters; a `Pet` takes 84. Nothing in it
//! moves when a pet is added.

use domain::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};

/// Pets with consecutive ids, in slots from 0. Ids have a gap only where a salvage has left commits out.
#[derive(Debug, Default)]
pub(super) struct PetChunk {
    pub(super) first_id: i64,
    categories: Vec<CategoryId>,
    /// The end of each pet's name in `names`; it starts where the previous one ends.
    ends: Vec<u16>,
    names: String,
    statuses: Vec<Option<PetStatus>>,
    /// Whether any pet has the status, so that a search for a rare one passes over this chunk.
    has_status: [bool; PetStatus::ALL.len()],
}

impl PetChunk {
    /// The maximum number of pets: few enough to search all statuses, enough that the overhead of a chunk is negligible.
    const PETS_MAX: usize = 1_024;
    /// The maximum size of the names, so that an end fits into two bytes.
    const NAMES_MAX: usize = u16::MAX as usize;

    /// A chunk that begins with this pet.
    pub(super) fn new(pet: &Pet) -> Self {
        let mut chunk = Self { first_id: pet.id.get(), ..Self::default() };
        chunk.push(pet);
        chunk
    }

    /// Whether the pet fits, and its id is the next one. All ids in the chunk are smaller.
    pub(super) fn has_room_for(&self, Pet { id, details }: &Pet) -> bool {
        let len = self.ends.len();
        usize::try_from(id.get() - self.first_id) == Ok(len)
            && len < Self::PETS_MAX
            && self.names.len() + details.name.as_str().len() <= Self::NAMES_MAX
    }

    /// Adds a pet, for which there must be room.
    pub(super) fn push(&mut self, Pet { details: NewPet { name, category_id, status }, .. }: &Pet) {
        self.categories.push(*category_id);
        self.names.push_str(name.as_str());
        self.ends.push(u16::try_from(self.names.len()).expect("a chunk is full before that"));
        self.statuses.push(*status);
        if let Some(status) = status {
            self.has_status[*status as usize] = true;
        }
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        self.categories.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.names.shrink_to_fit();
        self.statuses.shrink_to_fit();
    }

    /// The slots of the pets with greater ids; with a status, only of those that have it.
    pub(super) fn slots(&self, after: i64, status: Option<PetStatus>) -> impl Iterator<Item = usize> {
        let skipped = usize::try_from(after - self.first_id).map_or(0, |slot| slot + 1);
        let is_wanted = status.is_none_or(|status| self.has_status[status as usize]);
        let statuses = self.statuses.get(skipped..).filter(|_| is_wanted).unwrap_or_default();
        let matching =
            statuses.iter().zip(skipped..).filter(move |(of, _)| status.is_none() || **of == status);
        matching.map(|(_, slot)| slot)
    }

    /// The pet with this id, which is not smaller than the first one.
    pub(super) fn get(&self, id: PetId) -> Option<Pet> {
        let slot = usize::try_from(id.get() - self.first_id).ok()?;
        (slot < self.ends.len()).then(|| self.pet(slot))
    }

    /// The pet in this slot, which must not be empty.
    pub(super) fn pet(&self, slot: usize) -> Pet {
        let begin = slot.checked_sub(1).map_or(0, |before| self.ends[before].into());
        let name = PetName::of_checked(&self.names[begin..self.ends[slot].into()]);
        let id = PetId::new(self.first_id.saturating_add_unsigned(slot as u64))
            .expect("only ids of pets are added");
        let (category_id, status) = (self.categories[slot], self.statuses[slot]);
        Pet { id, details: NewPet { name, category_id, status } }
    }
}

#[cfg(test)]
mod tests {
    use domain::test_values::{named, pet};

    use super::*;

    #[test]
    fn a_chunk_is_full_when_it_has_enough_pets_or_enough_text() {
        for (name, pets) in [("a", 1_024), (&*"a".repeat(100), 655)] {
            let mut chunk = PetChunk::new(&pet(1, named(name)));
            let mut following = (2..).map(|id| pet(id, named(name)));
            while let Some(next) = following.next().filter(|pet| chunk.has_room_for(pet)) {
                chunk.push(&next);
            }
            assert_eq!(chunk.ends.len(), pets, "pets with {} bytes each", name.len());
            chunk.shrink();
            let capacities = (chunk.categories.capacity(), chunk.ends.capacity(), chunk.names.capacity());
            assert_eq!(capacities, (pets, pets, chunk.names.len()));
            assert_eq!(chunk.statuses.capacity(), pets);
        }
    }
}
