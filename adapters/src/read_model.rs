//! The read model: all pets in memory, in chunks, in ascending id order, with an index for each status. Every page
//! costs the same.

use std::mem;

use application::{ListPets, log::commit::Commit, ports::ReadModel};
use domain::{Pet, PetEvent, PetId, PetStatus};

use by_status::ByStatus;
use chunk::PetChunk;

mod by_status;
mod chunk;

/// The read model of one node.
#[derive(Debug, Default)]
pub struct MemoryReadModel {
    full: Vec<PetChunk>,
    /// The chunk that grows.
    last: PetChunk,
    /// The first id of each chunk that is not empty.
    first_ids: Vec<i64>,
    /// Which chunks hold pets with each status.
    by_status: ByStatus,
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
        let chunk = self.chunk(self.chunk_of(id.get()));
        chunk.slot_of(id).map(|slot| chunk.pet(slot))
    }

    fn list(&self, ListPets { limit, status, after }: &ListPets) -> (Vec<Pet>, Option<PetId>) {
        let mut pets: Vec<Pet> = Vec::with_capacity(limit.get());
        // Ids start at 1, so 0 precedes all of them.
        let after = after.map_or(0, PetId::get);
        let mut number = self.chunk_of(after);
        let mut from = self.chunk(number).slot_after(after);
        loop {
            let chunk = self.chunk(number);
            if let Some(slot) = chunk.next(from, *status) {
                if pets.len() == limit.get() {
                    let next = pets.last().map(|pet| pet.id);
                    return (pets, next);
                }
                pets.push(chunk.pet(slot));
                from = slot + 1;
            } else if let Some(next) = self.next_chunk(number + 1, *status) {
                (number, from) = (next, 0);
            } else {
                return (pets, None);
            }
        }
    }

    fn count(&self, status: Option<PetStatus>) -> usize {
        status.map_or(self.count, |status| self.count_by_status[status as usize])
    }
}

impl MemoryReadModel {
    fn add(&mut self, pet: &Pet) {
        if !self.last.has_room_for(pet) {
            let mut chunk = mem::take(&mut self.last);
            chunk.shrink();
            self.full.push(chunk);
        }
        if self.last.len() == 0 {
            self.first_ids.push(pet.id.get());
        }
        self.last.push(pet);
        if let Some(status) = pet.details.status {
            self.by_status.insert(self.full.len(), status);
            self.count_by_status[status as usize] += 1;
        }
        self.count += 1;
    }

    fn chunk(&self, number: usize) -> &PetChunk {
        self.full.get(number).unwrap_or(&self.last)
    }

    /// The only chunk that may hold this id.
    fn chunk_of(&self, id: i64) -> usize {
        self.first_ids.partition_point(|first| *first <= id).saturating_sub(1)
    }

    /// The first chunk at or after `from`; with a status, the first one that holds a pet with it.
    fn next_chunk(&self, from: usize, status: Option<PetStatus>) -> Option<usize> {
        match status {
            None => Some(from).filter(|chunk| *chunk < self.first_ids.len()),
            Some(status) => self.by_status.next(from, status),
        }
    }
}

#[cfg(test)]
mod tests;
