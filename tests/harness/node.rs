//! A node inside the test's own process: the real `PetStore` on a log that the test chooses, without HTTP.

use std::sync::Arc;

use adapters::{read_model::MemoryReadModel, system::SystemClock};
use application::{
    CreateError, CreatePet, KeyId, Limit, ListPets, Options, PetStore, Sharing,
    ports::{EventLog, Fault},
};
use domain::{CategoryId, NewPet, Pet, PetName};

/// Opens a node on this log, which must be sound.
pub async fn open_node(log: Arc<dyn EventLog>, sharing: Sharing) -> PetStore {
    let read_model = Arc::<MemoryReadModel>::default();
    PetStore::open(log, read_model, Arc::new(SystemClock), Options::new(sharing))
        .await
        .expect("the log is sound")
}

/// A request for a pet with this name, without a request key.
pub fn pet_named(name: &str) -> CreatePet {
    let name = PetName::new(name).expect("tests choose valid names");
    let pet = NewPet { name, category_id: CategoryId(7), status: None };
    CreatePet { pet, by: KeyId("somebody".into()), request_key: None }
}

/// Adds a pet with this name.
pub async fn create(store: &PetStore, name: &str) -> Result<Pet, CreateError> {
    store.create(pet_named(name)).await.map(|created| created.pet)
}

/// Every pet that readers of the node see, page by page.
pub fn all_pets(store: &PetStore) -> Result<Vec<Pet>, Fault> {
    let limit = Limit::new(Limit::MAX).expect("the most is allowed");
    let mut query = ListPets { limit, status: None, after: None };
    let mut pets = Vec::new();
    loop {
        let (page, _) = store.list(&query)?;
        pets.extend(page.pets);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(pets),
        }
    }
}
