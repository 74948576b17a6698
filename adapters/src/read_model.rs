//! The read model: all pets in memory, in chunks, in ascending id order. Every page costs the same.

use application::{ListPets, log::commit::Commit, ports::ReadModel};
use domain::{Pet, PetEvent, PetId, PetStatus};

use chunk::PetChunk;

mod chunk;

/// The read model of one node.
#[derive(Debug, Default)]
pub struct MemoryReadModel {
    /// In ascending id order. The last one grows.
    chunks: Vec<PetChunk>,
    count: usize,
    count_by_status: [usize; PetStatus::ALL.len()],
}

impl ReadModel for MemoryReadModel {
    fn apply(&mut self, commit: &Commit) {
        for entry in &commit.entries {
            let PetEvent::Added(pet) = &entry.event;
            self.add(pet);
        }
    }

    fn get(&self, id: PetId) -> Option<Pet> {
        self.chunks_from(id.get()).first()?.get(id)
    }

    fn list(&self, ListPets { limit, status, after }: &ListPets) -> (Vec<Pet>, Option<PetId>) {
        // Ids start at 1, so 0 precedes all of them.
        let after = after.map_or(0, PetId::get);
        let chunks = self.chunks_from(after).iter();
        let mut rest = chunks.flat_map(|chunk| chunk.slots(after, *status).map(move |slot| (chunk, slot)));
        let mut pets = Vec::with_capacity(limit.get());
        pets.extend(rest.by_ref().take(limit.get()).map(|(chunk, slot)| chunk.pet(slot)));
        let next = rest.next().and(pets.last()).map(|pet| pet.id);
        (pets, next)
    }

    fn count(&self, status: Option<PetStatus>) -> usize {
        status.map_or(self.count, |status| self.count_by_status[status as usize])
    }
}

impl MemoryReadModel {
    fn add(&mut self, pet: &Pet) {
        match self.chunks.last_mut() {
            Some(last) if last.has_room_for(pet) => last.push(pet),
            last => {
                if let Some(full) = last {
                    full.shrink();
                }
                self.chunks.push(PetChunk::new(pet));
            }
        }
        if let Some(status) = pet.details.status {
            self.count_by_status[status as usize] += 1;
        }
        self.count += 1;
    }

    /// The only chunk that may hold this id, and the chunks after it.
    fn chunks_from(&self, id: i64) -> &[PetChunk] {
        let after = self.chunks.partition_point(|chunk| chunk.first_id <= id);
        &self.chunks[after.saturating_sub(1)..]
    }
}

#[cfg(test)]
mod tests;
