//! The read model: all pets in memory, sorted by id, with one index per status. Every page costs the same, wherever
//! it starts.

mod saved;

use std::sync::Arc;

use application::{
    ListPets, Page, Version,
    commit::Commit,
    ports::{InvalidBlock, ReadModel, SavedPets},
};
use domain::{Pet, PetEvent, PetId, PetStatus};
use parking_lot::RwLock;

/// The read model of one node.
#[derive(Debug, Default)]
pub struct MemoryReadModel(RwLock<Pets>);

#[derive(Debug, Default)]
struct Pets {
    /// Sorted by ascending id.
    all: Chunked<Pet>,
    /// Indexes into `all`, ascending, one list per status.
    by_status: [Chunked<u32>; PetStatus::ALL.len()],
    version: Version,
}

impl ReadModel for MemoryReadModel {
    fn apply(&self, commit: &Commit) {
        let mut pets = self.0.write();
        for entry in &commit.entries {
            let PetEvent::Added(pet) = &entry.event;
            pets.add(pet.clone());
        }
        pets.version = Version::at(commit.position, commit.id);
    }

    fn clear(&self) {
        *self.0.write() = Pets::default();
    }

    fn get(&self, id: PetId) -> Option<Pet> {
        let pets = self.0.read();
        // Without gaps in the ids, the pet with id n is the n-th. A gap can only move it towards the front.
        let last_place = usize::try_from(id.get()).ok()?.min(pets.all.len());
        let place = match pets.all.get(last_place.checked_sub(1)?) {
            Some(pet) if pet.id == id => last_place - 1,
            Some(_) | None => pets.all.partition_point(|pet| pet.id < id),
        };
        pets.all.get(place).filter(|pet| pet.id == id).cloned()
    }

    fn list(&self, query: &ListPets) -> Page {
        let pets = self.0.read();
        match query.status {
            None => {
                let start = pets.all.partition_point(|pet| Some(pet.id) <= query.after);
                pets.page((start..pets.all.len()).filter_map(|place| pets.all.get(place)), query)
            }
            Some(status) => {
                let places = &pets.by_status[index(status)];
                let start = places.partition_point(|place| pets.at(*place).map(|pet| pet.id) <= query.after);
                pets.page((start..places.len()).filter_map(|nth| pets.at(*places.get(nth)?)), query)
            }
        }
    }

    fn version(&self) -> Version {
        self.0.read().version
    }

    fn count(&self) -> usize {
        self.0.read().all.len()
    }

    fn save(&self) -> SavedPets {
        let pets = self.0.read();
        SavedPets { version: pets.version, blocks: saved::blocks(pets.all.chunks.clone()) }
    }

    fn load(&self, saved: SavedPets) -> Result<(), InvalidBlock> {
        let mut pets = Pets { version: saved.version, ..Pets::default() };
        for (number, block) in saved.blocks.enumerate() {
            saved::read(&block, |pet| pets.add(pet)).ok_or(InvalidBlock(number))?;
        }
        *self.0.write() = pets;
        Ok(())
    }
}

impl Pets {
    fn add(&mut self, pet: Pet) {
        if let Some(status) = pet.details.status {
            let place = u32::try_from(self.all.len()).expect("four billion pets do not fit into memory");
            self.by_status[index(status)].push(place);
        }
        self.all.push(pet);
    }

    fn at(&self, place: u32) -> Option<&Pet> {
        self.all.get(place as usize)
    }

    /// Takes a page from the front of `rest`, and looks one pet further to know whether there is another page.
    fn page<'a>(&self, mut rest: impl Iterator<Item = &'a Pet>, query: &ListPets) -> Page {
        let mut pets = Vec::with_capacity(query.limit.get());
        pets.extend(rest.by_ref().take(query.limit.get()).cloned());
        let next = rest.next().and_then(|_| pets.last()).map(|pet| pet.id);
        Page { pets, next, version: self.version }
    }
}

fn index(status: PetStatus) -> usize {
    match status {
        PetStatus::Available => 0,
        PetStatus::Pending => 1,
        PetStatus::Sold => 2,
    }
}

/// A list that grows in chunks: a push never moves existing items, so it never stalls readers.
#[derive(Debug)]
struct Chunked<T> {
    /// A chunk that is part of a snapshot is copied when it changes.
    chunks: Vec<Arc<Vec<T>>>,
}

impl<T: Clone> Chunked<T> {
    const CHUNK: usize = 4_096;

    fn push(&mut self, item: T) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < Self::CHUNK => Arc::make_mut(chunk).push(item),
            Some(_) | None => {
                let mut chunk = Vec::with_capacity(Self::CHUNK);
                chunk.push(item);
                self.chunks.push(chunk.into());
            }
        }
    }

    fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * Self::CHUNK + last.len())
    }

    fn get(&self, place: usize) -> Option<&T> {
        self.chunks.get(place / Self::CHUNK)?.get(place % Self::CHUNK)
    }

    /// The index of the first item that is not `before`, provided that all items that are come first.
    fn partition_point(&self, before: impl Fn(&T) -> bool) -> usize {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(&before));
        chunk * Self::CHUNK + self.chunks.get(chunk).map_or(0, |items| items.partition_point(&before))
    }
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use application::{
        KeyId, Limit,
        commit::{Entry, Format},
        ports::{CommitId, Position},
    };
    use chrono::DateTime;
    use domain::{CategoryId, NewPet, PetName};
    use proptest::prelude::*;

    use super::*;

    fn pet(id: i64, status: Option<PetStatus>) -> Pet {
        let details = NewPet { name: PetName::new("Rex").unwrap(), category_id: CategoryId(1), status };
        Pet { id: PetId::new(id).unwrap(), details }
    }

    fn holding(pets: &[Pet]) -> MemoryReadModel {
        let entry = |pet: &Pet| Entry {
            event: PetEvent::Added(pet.clone()),
            by: KeyId("k".into()),
            request_key: None,
        };
        let model = MemoryReadModel::default();
        model.apply(&Commit {
            format: Format::V1,
            position: Position(1),
            id: CommitId("0192f0c1-2b3c-7def-8123-456789abcdef".parse().unwrap()),
            time: DateTime::UNIX_EPOCH,
            entries: pets.iter().map(entry).collect(),
        });
        model
    }

    /// Pets in id order, with and without gaps between the ids.
    fn any_pets() -> impl Strategy<Value = Vec<Pet>> {
        let status = prop::option::of(prop::sample::select(PetStatus::ALL.to_vec()));
        prop::collection::vec((prop_oneof![Just(1_i64), 1_i64..5], status), 0..60).prop_map(|steps| {
            let mut id = 0;
            steps
                .into_iter()
                .map(|(step, status)| {
                    id += step;
                    pet(id, status)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_page_is_the_first_matching_pets_after_an_id(
            pets in any_pets(),
            limit in 1..=100_usize,
            status in prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
            after in prop::option::of(1..200_i64),
        ) {
            let matching: Vec<_> = pets.iter()
                .filter(|pet| after.is_none_or(|after| pet.id.get() > after))
                .filter(|pet| status.is_none() || pet.details.status == status)
                .cloned()
                .collect();
            let query = ListPets { limit: Limit::new(limit).unwrap(), status, after: after.map(|id| PetId::new(id).unwrap()) };
            let page = holding(&pets).list(&query);
            let expected = &matching[..limit.min(matching.len())];
            prop_assert_eq!(&page.pets, expected);
            let more = matching.len() > limit;
            prop_assert_eq!(page.next, expected.last().filter(|_| more).map(|pet| pet.id));
        }

        #[test]
        fn a_pet_is_found_by_its_id_alone(pets in any_pets(), id in 1..200_i64) {
            let id = PetId::new(id).unwrap();
            let expected = pets.iter().find(|pet| pet.id == id).cloned();
            prop_assert_eq!(holding(&pets).get(id), expected);
        }
    }

    #[test]
    fn pages_reach_across_chunks() {
        let pets: Vec<_> = (1..=10_000)
            .zip(PetStatus::ALL.map(Some).into_iter().chain([None]).cycle())
            .map(|(id, status)| pet(id, status))
            .collect();
        let model = holding(&pets);
        for status in [None, Some(PetStatus::Available), Some(PetStatus::Pending), Some(PetStatus::Sold)] {
            let expected: Vec<_> =
                pets.iter().filter(|pet| status.is_none() || pet.details.status == status).cloned().collect();
            let mut walked = Vec::new();
            let mut query = ListPets { limit: Limit::new(100).unwrap(), status, after: None };
            loop {
                let page = model.list(&query);
                walked.extend(page.pets);
                query.after = page.next;
                if page.next.is_none() {
                    break;
                }
            }
            assert_eq!(walked, expected, "{status:?}");
        }
    }
}
