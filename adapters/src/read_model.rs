//! The read model: all pets in memory, in chunks, in ascending id order, with an index for each status. Every page
//! costs the same, and no pet is copied to serve it.

use std::mem;

use application::{ListPets, PetView, commit::Commit, ports::ReadModel};
use domain::{PetEvent, PetId, PetStatus};
use parking_lot::RwLock;

use by_status::ByStatus;
use chunk::PetChunk;

mod by_status;
mod chunk;

/// The read model of one node.
#[derive(Debug, Default)]
pub struct MemoryReadModel(RwLock<Pets>);

#[derive(Debug, Default)]
struct Pets {
    full: Vec<PetChunk>,
    /// The chunk that grows.
    last: PetChunk,
    /// The first id of each chunk that is not empty.
    first_ids: Vec<i64>,
    /// Which chunks hold pets with each status.
    by_status: ByStatus,
    count: usize,
}

/// The number of a pet's chunk, and its slot there.
#[derive(Debug, Clone, Copy)]
struct PetLocation {
    chunk: usize,
    slot: usize,
}

impl ReadModel for MemoryReadModel {
    fn apply(&self, commit: &Commit) {
        let mut pets = self.0.write();
        for entry in &commit.entries {
            let PetEvent::Added(pet) = &entry.event;
            pets.add(&pet.into());
        }
    }

    fn get(&self, id: PetId, sink: &mut dyn FnMut(PetView<'_>)) {
        let pets = self.0.read();
        let chunk = pets.chunk(pets.chunk_of(id.get()));
        if let Some(slot) = chunk.slot_of(id) {
            sink(chunk.pet(slot));
        }
    }

    fn list(&self, query: &ListPets, sink: &mut dyn FnMut(PetView<'_>)) -> Option<PetId> {
        let pets = self.0.read();
        let mut rest = pets.next(pets.after(query.after), query.status);
        let mut last = None;
        for _ in 0..query.limit.get() {
            let Some(PetLocation { chunk, slot }) = rest else { break };
            let pet = pets.chunk(chunk).pet(slot);
            last = Some(pet.id);
            sink(pet);
            rest = pets.next(PetLocation { chunk, slot: slot + 1 }, query.status);
        }
        rest.and(last)
    }

    fn count(&self) -> usize {
        self.0.read().count
    }
}

impl Pets {
    fn add(&mut self, pet: &PetView<'_>) {
        if !self.last.has_room_for(pet) {
            let mut chunk = mem::take(&mut self.last);
            chunk.shrink();
            self.full.push(chunk);
        }
        if self.last.len() == 0 {
            self.first_ids.push(pet.id.get());
        }
        self.last.push(pet);
        if let Some(status) = pet.status {
            self.by_status.insert(self.full.len(), status);
        }
        self.count += 1;
    }

    fn chunk(&self, number: usize) -> &PetChunk {
        self.full.get(number).unwrap_or(&self.last)
    }

    /// The location after the pet with this id, which need not exist.
    fn after(&self, id: Option<PetId>) -> PetLocation {
        let Some(id) = id.map(PetId::get) else { return PetLocation { chunk: 0, slot: 0 } };
        let chunk = self.chunk_of(id);
        PetLocation { chunk, slot: self.chunk(chunk).slot_after(id) }
    }

    /// The only chunk that may hold this id.
    fn chunk_of(&self, id: i64) -> usize {
        self.first_ids.partition_point(|first| *first <= id).saturating_sub(1)
    }

    /// The first location at or after `from` whose pet has this status, if one is given.
    fn next(&self, from: PetLocation, status: Option<PetStatus>) -> Option<PetLocation> {
        let PetLocation { chunk, slot } = from;
        if let Some(slot) = self.chunk(chunk).next(slot, status) {
            return Some(PetLocation { chunk, slot });
        }
        let chunk = match status {
            None => Some(chunk + 1).filter(|next| *next < self.first_ids.len()),
            Some(status) => self.by_status.next(chunk + 1, status),
        }?;
        self.chunk(chunk).next(0, status).map(|slot| PetLocation { chunk, slot })
    }
}

#[cfg(test)]
mod tests;
