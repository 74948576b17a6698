//! The read model: all pets in memory, in chunks, in ascending id order, with an index for each status. Every page
//! costs the same, and no pet is copied to serve it.

use std::{iter, mem};

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
        let mut rest = pets.after(query.after, query.status);
        let mut last = None;
        rest.by_ref().take(query.limit.get()).for_each(|pet| {
            last = Some(pet.id);
            sink(pet);
        });
        rest.next().and(last)
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

    /// The pets with ids greater than `id`, or all pets, in ascending order. With a status, only the pets that have it.
    /// `id` need not exist.
    fn after(&self, id: Option<PetId>, status: Option<PetStatus>) -> impl Iterator<Item = PetView<'_>> {
        // Ids start at 1, so 0 precedes all of them.
        let id = id.map_or(0, PetId::get);
        let first = self.chunk_of(id);
        let mut from = self.chunk(first).slot_after(id);
        iter::successors(Some(first), move |chunk| self.next_chunk(chunk + 1, status))
            .flat_map(move |chunk| self.chunk(chunk).pets(mem::take(&mut from), status))
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
