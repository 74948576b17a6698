//! The read model: all pets in memory, in chunks, in ascending id order, with an index for each status. Every page costs the
//! same, wherever it starts, and is handed out without copying a pet.

use std::{mem, sync::Arc};

use application::{
    ListPets, PageEnd, PetView, Version,
    commit::{CommitView, EventView},
    ports::{InvalidBlock, ReadModel, SavedPets},
};
use domain::{PetId, PetStatus};
use parking_lot::RwLock;

use by_status::ByStatus;
use chunk::Chunk;

mod block;
mod by_status;
mod chunk;

/// The read model of one node.
#[derive(Debug, Default)]
pub struct MemoryReadModel(RwLock<Pets>);

#[derive(Debug, Default)]
struct Pets {
    /// The chunks that no pet is added to any more. Whoever saves them shares them.
    full: Vec<Arc<Chunk>>,
    /// The chunk that grows.
    last: Chunk,
    /// The first id of each chunk that is not empty.
    first_ids: Vec<i64>,
    /// Which chunks hold pets with each status.
    by_status: ByStatus,
    count: usize,
    version: Version,
}

/// Where a pet is: the number of its chunk, and its slot there.
#[derive(Debug, Clone, Copy)]
struct Place {
    chunk: usize,
    slot: usize,
}

impl ReadModel for MemoryReadModel {
    fn apply(&self, commit: &CommitView<'_>) {
        let mut pets = self.0.write();
        for entry in &commit.entries {
            let EventView::Added(pet) = &entry.event;
            pets.add(pet);
        }
        pets.version = Version::at(commit.position, commit.id);
    }

    fn clear(&self) {
        // Freeing many chunks takes a while: not under the lock.
        let _old = mem::take(&mut *self.0.write());
    }

    fn get(&self, id: PetId, sink: &mut dyn FnMut(PetView<'_>)) -> Version {
        let pets = self.0.read();
        if let Some(Place { chunk, slot }) = pets.place(id) {
            sink(pets.chunk(chunk).pet(slot));
        }
        pets.version
    }

    fn list(&self, query: &ListPets, sink: &mut dyn FnMut(PetView<'_>)) -> PageEnd {
        let pets = self.0.read();
        let mut rest = pets.next(pets.after(query.after), query.status);
        let mut last = None;
        for _ in 0..query.limit.get() {
            let Some(Place { chunk, slot }) = rest else { break };
            let pet = pets.chunk(chunk).pet(slot);
            last = Some(pet.id);
            sink(pet);
            rest = pets.next(Place { chunk, slot: slot + 1 }, query.status);
        }
        PageEnd { next: rest.and(last), version: pets.version }
    }

    fn version(&self) -> Version {
        self.0.read().version
    }

    fn count(&self) -> usize {
        self.0.read().count
    }

    fn save(&self) -> SavedPets {
        let (full, last, version) = {
            let pets = self.0.read();
            (pets.full.clone(), Some(pets.last.clone()), pets.version)
        };
        let last = last.filter(|chunk| chunk.len() > 0).map(Arc::new);
        SavedPets {
            version,
            blocks: Box::new(full.into_iter().chain(last).map(|chunk| block::encode(&chunk))),
        }
    }

    fn load(&self, saved: SavedPets) -> Result<(), InvalidBlock> {
        let mut pets = Pets { version: saved.version, ..Pets::default() };
        for (place, bytes) in saved.blocks.enumerate() {
            let chunk = block::decode(&bytes).ok_or(InvalidBlock(place))?;
            pets.add_chunk(chunk).ok_or(InvalidBlock(place))?;
        }
        *self.0.write() = pets;
        Ok(())
    }
}

impl Pets {
    fn add(&mut self, pet: &PetView<'_>) {
        if !self.last.has_room_for(pet) {
            self.close_last();
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

    /// Begins a new chunk.
    fn close_last(&mut self) {
        let mut chunk = mem::take(&mut self.last);
        chunk.shrink();
        self.full.push(Arc::new(chunk));
    }

    /// Adds a whole chunk. `None` if it does not follow those before it.
    fn add_chunk(&mut self, chunk: Chunk) -> Option<()> {
        let first = chunk.pet(0).id.get();
        if self.last.len() > 0 {
            let before = self.last.pet(self.last.len() - 1).id.get();
            if first <= before {
                return None;
            }
            self.close_last();
        }
        self.first_ids.push(first);
        for status in PetStatus::ALL {
            if chunk.next(0, Some(status)).is_some() {
                self.by_status.insert(self.full.len(), status);
            }
        }
        self.count += chunk.len();
        self.last = chunk;
        Some(())
    }

    fn chunk(&self, number: usize) -> &Chunk {
        self.full.get(number).map_or(&self.last, |chunk| &**chunk)
    }

    fn place(&self, id: PetId) -> Option<Place> {
        let chunk = self.chunk_of(id.get());
        self.chunk(chunk).slot_of(id).map(|slot| Place { chunk, slot })
    }

    /// Right behind the pet with this id, or where it would be.
    fn after(&self, id: Option<PetId>) -> Place {
        let Some(id) = id.map(PetId::get) else { return Place { chunk: 0, slot: 0 } };
        let chunk = self.chunk_of(id);
        Place { chunk, slot: self.chunk(chunk).slot_after(id) }
    }

    /// The chunk that holds this id, if any does.
    fn chunk_of(&self, id: i64) -> usize {
        self.first_ids.partition_point(|first| *first <= id).saturating_sub(1)
    }

    /// The first place from `from` on whose pet has this status, or any.
    fn next(&self, from: Place, status: Option<PetStatus>) -> Option<Place> {
        let Place { chunk, slot } = from;
        if let Some(slot) = self.chunk(chunk).next(slot, status) {
            return Some(Place { chunk, slot });
        }
        let chunk = match status {
            None => Some(chunk + 1).filter(|next| *next < self.first_ids.len()),
            Some(status) => self.by_status.next(chunk + 1, status),
        }?;
        self.chunk(chunk).next(0, status).map(|slot| Place { chunk, slot })
    }
}

#[cfg(test)]
mod tests;
